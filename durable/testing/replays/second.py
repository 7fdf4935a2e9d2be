"""Replay the records of a run with its own code until the records end, and report the place where the traces of its
operations differ.

Owns the host of such a pass: any operation that is not in the records ends it.
"""

from __future__ import annotations

import contextvars
import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any, Final, TypeVar

from durable import carriers
from durable.codec import JsonCodec
from durable.context import AsyncContext, Context
from durable.core.bodies import run_body
from durable.core.control_flow import ControlFlow
from durable.core.current import leave_code_around, running_workflow
from durable.core.effects import Operation
from durable.core.errors import ErrorInfo, PayloadError
from durable.core.records import Request, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.run_pass import PassOutcome
from durable.core.scope import SILENT, Scope
from durable.core.time_limits import History
from durable.core.witnesses import raised
from durable.drivers.aio import AsyncDriver
from durable.drivers.sync import SyncDriver
from durable.execution.passes import PassHost, RecordedHost
from durable.runtime import Runtime
from durable.testing.replays.counterparts import Counterparts

T = TypeVar("T")


@dataclass(slots=True)
class Replay:
    """The outcome of a replay.

    `error` is the error raised by the code; `has_ended` is False if the records ended first.
    """

    trace: Trace
    has_ended: bool = False
    value: Any = None
    error: Exception | None = None


def replay(record: RunRecord, definition: WorkflowDefinition, at: Runtime, history: History) -> Replay:
    """Replay the records of the run in `history` in a changed environment."""
    found = Replay(Trace())
    # as the next worker would claim it, ignoring operators' requests
    claimed = replace(record, fence=raised(record.fence), pending_request=Request.NONE)
    host = _Host(claimed, history, replace(at, on_operation=found.trace.note))
    given = host.environment.decode_input()
    host.journal.scheduled_for = given.get("scheduled_for")

    def drive() -> None:
        leave_code_around()
        with running_workflow(record.id, record.workflow), carriers.restored_for_replay(record):
            # the variables of the code are copied as the carriers have set them
            function = host.counterparts.of(definition.function)
            operation = _replayed(host, lambda context: function(context, *given["args"], **given["kwargs"]), found)
            if definition.is_async:
                operation = AsyncDriver(host).with_loops(operation)
            SyncDriver(host).drive(operation)

    dice = random.getstate()
    try:
        contextvars.copy_context().run(drive)
    finally:
        random.setstate(dice)
    return found


def different(pass_: Trace, found: Replay, outcome: PassOutcome) -> str:
    """Say how a replay differs from the pass with this trace and outcome; "" if it does not."""
    if difference := compare(pass_, found.trace, has_ended=found.has_ended):
        return difference if found.error is None else f"{difference}, with {ErrorInfo.of(found.error)}"
    if outcome.state != RunState.COMPLETED or not found.has_ended:
        return ""
    if found.error is not None:
        return f"the pass returned, and the replay raised {ErrorInfo.of(found.error)}"
    mine, other = written(outcome.output), written(found.value)
    if mine is None or other is None or mine == other:
        return ""
    return f"the pass returned {mine}, and the replay {other}"


def _replayed(host: PassHost, call: Callable[[Any], Any], found: Replay) -> Operation:
    try:
        found.value = yield from run_body(Scope(host.journal, host.journal.root), call)
        found.has_ended = True
    except ControlFlow:
        return
    except Exception as error:  # noqa: BLE001  # whatever the code raises
        found.error, found.has_ended = error, True


class _Host(RecordedHost):
    """Answers from the records, with counterparts of the code's functions."""

    def __init__(self, run: RunRecord, history: History, at: Runtime) -> None:
        super().__init__(run, history, at)
        self.counterparts = Counterparts()

    def sync_context(self, scope: Scope, driver: Any) -> Context:
        return self._prepared(super().sync_context(scope, driver))

    def async_context(self, scope: Scope, driver: Any) -> AsyncContext:
        return self._prepared(super().async_context(scope, driver))

    def _prepared(self, context: T) -> T:
        logged: Any = context
        logged.logger.logger = SILENT
        for name in ("step", "try_step"):
            setattr(logged, name, self.counterparts.with_own_handlers(getattr(logged, name)))
        return context


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
