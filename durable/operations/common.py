"""Helpers that the verbs share: notify workers of a change, check a state, wait for a result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import TypeAlias, TypeVar

from django.db import connections

from durable import runtime, signals
from durable.conf import conf
from durable.core.current import is_in_step, running_run
from durable.core.duration import Duration, parse_remaining
from durable.core.errors import BulkOrderError, InvalidTransitionError, OutsideStepError
from durable.core.own_runs import BULK
from durable.core.records import ENDED, RunRecord, RunState
from durable.instrumentation import observers
from durable.operations.async_calls import run_sync
from durable.runtime import Runtime

T = TypeVar("T")
#: A wait in progress: yields the seconds to pause before the next look, and returns the result.
Waiting: TypeAlias = Generator[float, None, T]

logger = logging.getLogger("durable.operations")

#: The likely reason why a wait inside a transaction does not end.
IN_TRANSACTION = (
    "this waits inside transaction.atomic() (or ATOMIC_REQUESTS), and no worker sees what is started or sent there before "
    "that commits: wait after it"
)
UNENDED = tuple(each for each in RunState if each not in ENDED)
_LOOK_EVERY = (0.01, 0.5)  # seconds between two looks for a result: the first interval, the longest one


def require_step(action: str, remedy: str) -> None:
    """Raise OutsideStepError if workflow code calls this between two steps: each replay would repeat `action`."""
    if running_run() is not None and not is_in_step():
        raise OutsideStepError(action, remedy)


def announce(at: Runtime, queue: str, wake_at: datetime | None) -> None:
    """Notify workers that a run is due, or timers of the moment when it becomes due."""
    if wake_at is None:
        return
    if wake_at <= at.now():
        at.notify({queue})
    else:
        at.notify_at(queue, wake_at)


def announce_parent(at: Runtime, run: RunRecord) -> None:
    """Notify workers of what the end of this run may have made due: its parent, and a child whose turn has come."""
    if run.state in ENDED and run.parent_id is not None and (parent := at.store.get(run.parent_id)) is not None:
        announce(at, parent.queue, parent.wake_at)
        at.notify({run.queue})


def check_state(run: RunRecord, action: str, allowed: Sequence[RunState]) -> None:
    """Raise InvalidTransitionError unless the run is in one of the allowed states."""
    if run.state not in allowed:
        raise InvalidTransitionError(run.state, allowed, action, run.id)


def check_not_an_order(workflow: str, action: str) -> None:
    """Raise BulkOrderError if the workflow is the one that performs bulks: it acts with another user's permissions."""
    if workflow == BULK:
        raise BulkOrderError(action, workflow)


def send_run_changed(at: Runtime, runs: Sequence[RunRecord], previous: str) -> None:
    """Send `run_changed` for each of these runs after the commit; `previous` is "" for new runs."""

    def say() -> None:
        for run in runs:
            details = {"run": run.id, "workflow": run.workflow, "state": str(run.state), "previous": str(previous)}
            if not previous:
                observers.started(run)
            signals.send(signals.run_changed, **details)

    at.after_commit(say)


def waiting(
    look: Callable[[], T | None], timeout: Duration | None, problem: str, describe: Callable[[], str]
) -> Waiting[T]:
    """Call `look` at growing intervals until it returns something; that is the generator's value.

    Yields the seconds to pause before the next look. After `timeout` raises TimeoutError with `problem` and, in
    the words of `describe()`, the run's state. Inside a transaction the error names that transaction as the likely
    reason instead; if the caller would wait for ever, the error is raised at once. The pauses count as well as the
    clock, which a test may have stopped.
    """
    limit = None if timeout is None else parse_remaining(timeout, "a timeout").total_seconds()
    began, paused = time.monotonic(), 0.0
    pause, longest = _LOOK_EVERY
    is_logged = False
    while (found := look()) is None:
        left = longest if limit is None else limit - max(paused, time.monotonic() - began)
        if left <= 0:
            advice = IN_TRANSACTION if _is_in_transaction() else describe()
            raise TimeoutError(f"{problem} after {limit:g} s; {advice}")
        seconds = min(pause, left)
        yield seconds
        paused += seconds
        if limit is None and not is_logged and _is_in_transaction():
            is_logged = True
            logger.warning("%s, and the wait has no timeout; %s", problem, IN_TRANSACTION)
        pause = min(pause * 1.5, longest)
    return found


def wait_for(waiting: Waiting[T]) -> T:
    """Perform a wait in this thread."""
    at = runtime.current()
    while True:
        try:
            seconds = next(waiting)
        except StopIteration as stop:
            found: T = stop.value
            return found
        at.poll_wait(seconds)


async def await_for(waiting: Waiting[T]) -> T:
    """Perform a wait from an event loop.

    Each look is a short call, and no thread or connection is held between two looks.
    """
    at = runtime.current()

    def look() -> tuple[float, list[T]]:
        try:
            return next(waiting), []
        except StopIteration as stop:  # a coroutine may not raise StopIteration
            return 0.0, [stop.value]

    while True:
        seconds, found = await run_sync(look)
        if found:
            return found[0]
        if at.poll_wait is time.sleep:
            await asyncio.sleep(seconds)
        else:  # a harness, which executes due runs in the meantime
            await run_sync(at.poll_wait, seconds)


def _is_in_transaction() -> bool:
    return connections[conf.DATABASE].in_atomic_block
