"""Replay the records of a run with its own code until the records end.

Owns the host of such a pass: any operation that is not in the records ends it.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from durable import carriers
from durable.context import AsyncContext, Context
from durable.core.bodies import run_body
from durable.core.control_flow import ControlFlow
from durable.core.current import leave_code_around, running_workflow
from durable.core.effects import Operation
from durable.core.errors import ErrorInfo
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
from durable.testing.replays.traces import Trace, compare, written

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
    function = host.counterparts.of(definition.function)

    def drive() -> None:
        operation = _replayed(host, lambda context: function(context, *given["args"], **given["kwargs"]), found)
        if definition.is_async:
            operation = AsyncDriver(host).with_loops(operation)
        leave_code_around()
        with running_workflow(record.id, record.workflow), carriers.restored_for_replay(record):
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
