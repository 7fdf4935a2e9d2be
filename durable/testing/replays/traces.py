"""Traces of each scope's operations with their arguments, and the place where two traces differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, Final

from durable.codec import JsonCodec
from durable.core.effects import Operation
from durable.core.errors import PayloadError
from durable.core.scope import Scope

_CODEC: Final = JsonCodec().unlimited
# parameters that describe an operation and are not values given to it
_NOT_SHOWN: Final = frozenset({"options", "catch"})
_SHOWN: Final = 300  # characters of an operation's values


class NotDeterministicError(AssertionError):
    """The code of a workflow does something else when it is replayed. The message has both sides."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reached:
    """An operation that the code has come to. `given` are its values by parameter, as codec text."""

    label: str
    given: dict[str, str]

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {text}" for name, text in self.given.items() if name != "name")
        return f"{self.label} ({shown[:_SHOWN]})" if shown else self.label


class Trace:
    """The operations of one pass, by the locations of their scopes."""

    def __init__(self) -> None:
        self.scopes: dict[str, list[_Reached]] = {}

    def note(self, scope: Scope, label: str, operation: Operation) -> None:
        """Record an operation before it begins."""
        given = dict(_values(operation))
        self.scopes.setdefault(scope.location, []).append(_Reached(label, given))


def compare(first: Trace, second: Trace, *, has_ended: bool) -> str:
    """Say how the second trace differs from the first, as far as it goes; "" if it does not.

    `has_ended`: the second one's code has ended, instead of coming to an operation that is not recorded.
    """
    for location, later in second.scopes.items():
        earlier = first.scopes.get(location)
        if earlier is None:  # the first one had its result, or was not awaited
            continue
        where = f'scope "{location}"' if location else "the workflow"
        for number, reached in enumerate(later):
            before = earlier[number] if number < len(earlier) else None
            if before != reached:
                went = f"came to {before}" if before is not None else "came to no further operation"
                return f"after {number} operations of {where}, the pass {went}, and the replay came to {reached}"
    mine, other = first.scopes.get("", []), second.scopes.get("", [])
    if has_ended and len(other) < len(mine):
        return f"the pass came to {mine[len(other)]}, and the replay ended before"
    return ""


def written(value: object) -> str | None:
    """Return the value as text, the same for equal values; None if it cannot be recorded."""
    try:
        return _CODEC.encode(value)
    except PayloadError:
        return None


def _values(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield those parameters of an operation that has not begun that are data."""
    frame = getattr(operation, "gi_frame", None)
    for name, value in ({} if frame is None else frame.f_locals).items():
        if name in _NOT_SHOWN:
            continue
        if isinstance(value, GeneratorType):
            yield from _values(value)
        else:
            yield from _data(name, value)


def _data(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Scope) or callable(value) or value is None:
        return
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from _data(f"{name}.{each.name}", getattr(value, each.name, None))
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _data(f"{name}[{number}]", each)
    elif (text := written(value)) is not None:
        yield name, text
