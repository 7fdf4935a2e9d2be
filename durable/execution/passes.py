"""One pass of a run: load its history, drive the engine through it, return the outcome.

Owns how a pass is put together; `durable.execution.host` has its parts. Must not decide what a workflow does next: the
engine does.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db import Error

from durable import guard, runtime
from durable.conf import conf
from durable.core import registry
from durable.core.compatibility import unreadable
from durable.core.current import leave_code_around, running_workflow
from durable.core.errors import HistoryDivergedError, PayloadError
from durable.core.records import LONG_HISTORY, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.run_pass import PassOutcome, PassPolicy, PassWants, Slots, run_pass
from durable.drivers.aio import AsyncDriver
from durable.drivers.sync import SyncDriver
from durable.execution.environment import Eviction
from durable.execution.host import PassHost
from durable.instrumentation import observers
from durable.mistakes import mistakes_of
from durable.runtime import Runtime
from durable.store import Store

__all__ = ["PassOutcome", "execute_pass"]

logger = logging.getLogger("durable.pass")


def execute_pass(record: RunRecord, *, store: Store, eviction: Eviction, at: Runtime | None = None) -> PassOutcome:
    """Execute one pass of a claimed run. Raises LeaseLost or PassAborted if nothing more may or can be written.

    The caller notifies the queues that the outcome names: a worker may claim their runs itself.
    """
    at = at or runtime.current()
    definition = _definition(record, store, at)
    host = PassHost(record, store, eviction, at, mistakes_of(definition))
    policy = PassPolicy(
        max_crashes=conf.MAX_CRASHES,
        divergence_grace=conf.DIVERGENCE_GRACE if at.divergence_grace is None else at.divergence_grace,
    )
    operation = run_pass(host.journal, _call_of(definition, host), policy, _slots_of(definition, host))
    if definition is not None and definition.is_async:
        operation = AsyncDriver(host).with_loops(operation)

    def drive() -> PassOutcome:
        leave_code_around()
        with running_workflow(record.id, record.workflow), observers.observe_pass(record, at.now) as observation:
            host.events.observation = observation
            outcome: PassOutcome = SyncDriver(host).drive(operation)
            observation.outcome = outcome
            return outcome

    # in a context of its own: context variables of a workflow reach no other run, and the caller's context does not
    # grow
    try:
        outcome = contextvars.copy_context().run(drive)
    except BaseException:
        at.notify(host.left_to_notify)
        raise
    if isinstance(host.journal.poison, HistoryDivergedError):
        _learn_names(store)
    queues = host.left_to_notify | {record.queue} if outcome.due_now else host.left_to_notify
    is_long = host.journal.has_more_entries_than(LONG_HISTORY)
    return replace(outcome, queues_to_notify=queues, is_long=is_long) if queues or is_long else outcome


def _learn_names(store: Store) -> None:
    """Look whether a migration has renamed what did not fit, for the next try."""
    try:
        store.learn_names()
    except Error as error:
        logger.warning("cannot read what was renamed: %s: %s", type(error).__name__, error)


def _definition(record: RunRecord, store: Store, at: Runtime) -> WorkflowDefinition | None:
    try:
        return registry.get(record.workflow)
    except registry.UnknownWorkflowError as error:
        if (found := _found(record.workflow, store, at)) is not None:
            return found
        if record.state != RunState.ROLLING_BACK:
            about = {"run_id": record.id, "workflow": record.workflow}
            logger.error("run %s waits for a worker that knows its workflow: %s", record.id, error, extra=about)
        return None


def _found(workflow: str, store: Store, at: Runtime) -> WorkflowDefinition | None:
    """Return the definition that this process has under another name, or outside the registry; None if it has none."""
    if at.find_workflow is not None and (found := at.find_workflow(workflow)) is not None:
        return found
    _learn_names(store)
    try:
        return registry.get(workflow)
    except registry.UnknownWorkflowError:
        return None


def _slots_of(definition: WorkflowDefinition | None, host: PassHost) -> Slots | None:
    """Return which slots the workflow's limits give a pass of the run; None for a workflow without limits."""
    if definition is None or definition.limits is None:
        return None
    limits = definition.limits

    def wanted() -> PassWants:
        args, kwargs, _ = _arguments(host)
        return PassWants(rates=limits.rates(args, kwargs), slots=limits.wants(args, kwargs))

    return wanted


def _arguments(host: PassHost) -> tuple[list[Any], dict[str, Any], Any]:
    """Return a fresh copy of the workflow's arguments, and the moment of the schedule's tick or None."""
    try:
        given = host.environment.decode_input()
    except PayloadError as error:
        # whatever the history goes on with: the code has not begun
        host.journal.poison = unreadable("", "the input", error)
        raise host.journal.poison from error
    return given["args"], given["kwargs"], given.get("scheduled_for")


def _call_of(definition: WorkflowDefinition | None, host: PassHost) -> Callable[[Any], Any] | None:
    """Return the workflow's function, bound to a fresh copy of its input; None without a definition."""
    if definition is None:
        return None

    is_watched = guard.begin_pass()

    def call(context: Any) -> Any:
        args, kwargs, host.journal.scheduled_for = _arguments(host)
        if is_watched:
            return guard.with_unchanged_input(
                context._scope, definition.function, context, args, kwargs, is_async=definition.is_async
            )
        return definition.function(context, *args, **kwargs)

    call.__qualname__ = getattr(definition.function, "__qualname__", definition.name)
    return call
