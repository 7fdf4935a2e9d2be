"""Ranks of starts that durable refuses whatever the settings are: priorities, shares, weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from durable.lint.values import WorkflowValue

#: what a node is if its text does not say what it stands for
_UNKNOWN: Final = object()
_DAY: Final = 24 * 60 * 60
_LONGEST_SHARE: Final = 200


def problems_of_rank(workflow: WorkflowValue) -> Iterator[tuple[str, str]]:
    """Yield what is refused of the rank, and the mend.

    A text of a priority may be a name of the settings: it is not judged.
    """
    priority, share, weight = (_constant(workflow, each) for each in ("priority", "share", "weight"))
    if priority == "":
        yield "`priority` is an empty text.", 'Write a length, such as "10 min", or leave it out.'
    elif _is_number(priority) and not abs(priority) <= _DAY:  # type: ignore[arg-type]  # a number
        yield f"`priority` is at most a day of seconds, not {priority!r}.", 'Write a length, such as "10 min".'
    elif isinstance(priority, bool | bytes):
        yield f"`priority` is a length of time or a name, not {priority!r}.", 'Write a length, such as "10 min".'
    if isinstance(share, str):
        if not (1 <= len(share) <= _LONGEST_SHARE and share.isprintable()):
            yield "`share` is made of 1 to 200 printable characters.", "Name the tenant, or leave it out."
    elif share is not None and share is not _UNKNOWN:
        yield f"`share` is text, not {share!r}.", "Write share=str(...)."
    if isinstance(weight, str | bytes | bool):
        yield f"`weight` is a number, not {weight!r}.", "Write a number, such as 2."
    elif _is_number(weight) and not 0.001 <= weight <= 1000:  # type: ignore[operator]  # a number
        yield f"`weight` is a number from 0.001 to 1000, not {weight!r}.", "Write a number, such as 2."


def _constant(workflow: WorkflowValue, option: str) -> object:
    """Return the literal of an option, None without the option."""
    if option not in workflow.options:
        return None
    try:
        return ast.literal_eval(workflow.options[option][0])
    except (ValueError, TypeError, RecursionError):
        return _UNKNOWN


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
