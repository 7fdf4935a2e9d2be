"""The arguments of a run that a person may edit: those that JSON expresses exactly and that nothing hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from durable import runtime
from durable.conf import conf
from durable.core.places import Place
from durable.inspection.payloads import redacted
from durable.inspection.plain_data import to_plain
from durable.inspection.size_limit import TooLarge, read_within
from durable.models import Run

_MOST: Final = 1024 * 1024  # bytes of an input that can be edited
_PLAIN: Final = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditableInput:
    """The input of a run as it can be edited.

    `values` are the arguments that can be edited, `kept` the names of the others, which stay as they were recorded.
    """

    values: Mapping[str, Any]
    kept: Sequence[str]


def recorded_input(run: Run) -> dict[str, Any] | None:
    """Return the run's decoded input; None if it is too large to be edited, or cannot be read."""
    found = read_within(Run.objects.using(conf.DATABASE).filter(pk=run.pk), "input", most=_MOST).get(run.pk)
    if found is None or isinstance(found, TooLarge):
        return None
    try:
        given: dict[str, Any] = runtime.current().decode(found[0], Place(run.pk, "input"))
    except Exception:  # noqa: BLE001  # a deleted class, a lost key
        return None
    return given


def shown_arguments(run: Run, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> EditableInput:
    """Return which of the arguments can be edited. `given` is the input that they come from.

    With a redaction hook an argument can be edited if the hook leaves it as it is.
    """
    hidden = _hidden(run, given, arguments) if conf.REDACT else frozenset()
    values = {
        name: list(value) if type(value) is tuple else value
        for name, value in arguments.items()
        if name not in hidden and (is_plain(value) or (type(value) is tuple and all(map(is_plain, value))))
    }
    return EditableInput(values=values, kept=[name for name in arguments if name not in values])


def _hidden(run: Run, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments of which the hook hides something; all if it changes the input's form."""
    try:
        plain, shown = to_plain(given), redacted(run.workflow, "input", given)
        if plain == shown:
            return frozenset()
        rest = list(zip(plain["args"], shown["args"], strict=True))
        named = {name: plain["kwargs"][name] == shown["kwargs"][name] for name in plain["kwargs"]}
    except Exception:  # noqa: BLE001  # the hook's result has another form
        return frozenset(arguments)
    positional = [name for name in arguments if name not in named]
    if len(positional) != len(rest):  # *args or **kwargs
        return frozenset(arguments)
    same = {name: before == after for name, (before, after) in zip(positional, rest, strict=True)} | named
    return frozenset(name for name in arguments if not same.get(name, False))


def is_plain(value: Any) -> bool:
    """Return whether the value comes back from JSON as it was."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in _PLAIN and (type(value) is not float or value - value == 0)
