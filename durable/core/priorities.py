"""The options of a rank at a start: priorities as lengths of time or by name, shares and their weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta

from durable.core.duration import Duration, parse_length
from durable.core.ids import MAX_ID
from durable.core.ranks import LONGEST, Ranking


def head_start(priority: Duration, names: Mapping[str, Duration]) -> int:
    """Return a priority, a length of time or one of `names`, in whole seconds; negative for one that is put back.

    Raises TypeError for another type, and ValueError for an unknown name, a name that no run can have, or more than a
    day.
    """
    if isinstance(priority, str):
        if priority in names:
            priority = names[_check_name(priority)]
        elif len(priority.strip()) > MAX_ID:
            raise ValueError(f"a priority is written in at most {MAX_ID} characters, not {priority[:64]!r} and more")
    try:
        length = parse_length(priority, "a priority")
    except ValueError:
        if not isinstance(priority, str) or any(each.isdigit() for each in priority):
            raise
        nearest = difflib.get_close_matches(priority, names, n=1)
        hint = f'did you mean "{nearest[0]}"?' if nearest else f"there are {', '.join(names) or 'none'}"
        raise ValueError(
            f'no priority is named {priority!r} in DURABLE["PRIORITIES"], {hint}; or write a length, such as "10 min"'
        ) from None
    if abs(length) > LONGEST:
        raise ValueError(f"a priority is a head start of at most 24 hours, or as much less than none, not {priority!r}")
    return round(length.total_seconds())


def is_priority_name(name: object) -> bool:
    """Return True if runs can have a priority of this name: 1 to 200 printable characters, and not only spaces."""
    return isinstance(name, str) and name.isprintable() and 1 <= len(name.strip()) <= MAX_ID


def _check_name(name: str) -> str:
    if not is_priority_name(name):
        raise ValueError(
            f'a name in DURABLE["PRIORITIES"] is made of 1 to {MAX_ID} printable characters, not {name[:64]!r}'
        )
    return name


def priority_text(priority: Duration) -> str:
    """Return a priority as it is shown: as it was written, a number of seconds with its unit."""
    if isinstance(priority, timedelta):
        priority = priority.total_seconds()
    return priority.strip() if isinstance(priority, str) else f"{priority:g} s"


def check_share(share: str) -> str:
    """Return `share` if runs can have it: 1 to 200 printable characters; else raise TypeError or ValueError."""
    if not isinstance(share, str):
        raise TypeError(f"a share is text, not {share!r}: write share=str(...)")
    if not (1 <= len(share) <= MAX_ID and share.isprintable()):
        raise ValueError(f"a share is made of 1 to {MAX_ID} printable characters: {share[:64]!r}")
    return share


def check_weight(weight: float) -> float:
    """Return the weight of a share's run if it is a number from 0.001 to 1,000; else raise TypeError or ValueError."""
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise TypeError(f"a weight is a number, not {weight!r}")
    if not 0.001 <= weight <= 1000:
        raise ValueError(f"a weight is a number from 0.001 to 1000, 1 by default, not {weight!r}")
    return float(weight)


def ranking_of(
    priority: Duration | None, share: str | None, weight: float | None, names: Mapping[str, Duration]
) -> Ranking | None:
    """Return the ranking that a start asks for; None for none. Raises what the functions above raise."""
    if share is None and weight is not None:
        raise TypeError("using(weight=...) needs share=... too")
    if priority is None and share is None:
        return None
    return Ranking(
        priority="" if priority is None else priority_text(priority),
        head_start=0 if priority is None else head_start(priority, names),
        share="" if share is None else share,
        weight=1.0 if weight is None else weight,
    )
