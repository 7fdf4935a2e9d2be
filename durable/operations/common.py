"""Shared parts of the verbs: names, descriptions of states, calls from an event loop, notifications, waits for a
result.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import select
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import update_wrapper
from typing import Any, ParamSpec, TypeAlias, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable import runtime, signals
from durable.conf import conf
from durable.core import registry
from durable.core.current import is_in_step, running_run
from durable.core.duration import Duration, parse_remaining
from durable.core.errors import BulkOrderError, InvalidTransitionError, OutsideStepError
from durable.core.ids import check_queue
from durable.core.names.renames import is_same_workflow, names_of_queue
from durable.core.records import ENDED, RunRecord, RunState, is_leased
from durable.core.registry import BULK, UnknownWorkflowError, WorkflowDefinition
from durable.core.summary import Summary, SummaryKind
from durable.instrumentation import observers
from durable.notifier import redis_clients
from durable.runtime import Runtime


def workflow_named(name: str) -> WorkflowDefinition:
    """Return the workflow's definition, by its name or an earlier one. Raises UnknownWorkflowError."""
    try:
        return registry.get(name)
    except UnknownWorkflowError:
        runtime.current().store.learn_names()
        return registry.get(name)


def is_of_workflow(found: str, workflow: str) -> bool:
    """Return True if both are names of one workflow."""
    if found == workflow:
        return True
    runtime.current().store.learn_names()
    return is_same_workflow(found, workflow)


def check_served(queue: str) -> str:
    """Return the queue if workers can serve it. Raises TypeError, and ValueError for a queue that the settings lack."""
    known = redis_clients.queue_names()
    if check_queue(queue) not in known:
        runtime.current().store.learn_queues()
        if not any(each in known for each in names_of_queue(queue)):
            nearest = difflib.get_close_matches(queue, known, n=1)
            advice = f'did you mean "{nearest[0]}"? RQ_QUEUES' if nearest else "RQ_QUEUES"
            raise ValueError(f'no worker can serve the queue "{queue[:64]}": {advice} has {", ".join(known) or "none"}')
    return queue


def describe_state(run: RunRecord, now: datetime) -> str:
    """Describe the run's state, what it waits for and, if necessary, what to do about it."""
    return f"{_where(run, now)}. `manage.py durable why {run.id}` says more"


def _where(run: RunRecord, now: datetime) -> str:
    if run.state == RunState.PAUSED:
        return "it is paused until resume()"
    if is_leased(run, now):
        return f"it is {run.state}: worker {run.worker} has it"
    if Summary.load(run.summary).kind is SummaryKind.UNKNOWN_WORKFLOW:
        return (
            f'the worker that took it does not know its workflow "{run.workflow}": have the function in the workflows.py of '
            "an installed app, and restart the workers of its queue with that code"
        )
    if run.wake_at is not None and run.wake_at <= now:
        late = (now - run.wake_at).total_seconds()
        return (
            f"it is {run.state}, due for {late:.0f} s and not yet taken by a worker: see that one serves its queue "
            f"(manage.py durable_worker {run.queue})"
            if not conf.REDIS or any(name in redis_clients.queue_names() for name in names_of_queue(run.queue))
            else f"it is {run.state}, due for {late:.0f} s and not yet taken by a worker: RQ_QUEUES lacks its queue "
            f'"{run.queue}", so no worker can serve it'
        )
    doing = f": {run.summary}" if run.summary else ""
    wakes = f", until {run.wake_at:%Y-%m-%d %H:%M:%S} UTC" if run.wake_at is not None and not run.summary else ""
    return f"it is {run.state}{doing}{wakes}"


P = ParamSpec("P")
R = TypeVar("R")


async def run_sync(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a synchronous function from an event loop, and return what it returns.

    The call runs in the thread in which Django runs all synchronous code of the request or the loop, so it belongs to
    the transaction that is open there, and must not block for long. No other code maintains that thread's connections:
    outside a request no Django signal closes them, and a connection that PostgreSQL has cut fails forever. So a
    connection that the call opens is closed at its end, whatever CONN_MAX_AGE says, and one that the server has cut is
    replaced before the call uses it. Connections inside a transaction, for example a test's, are left alone.
    """

    def call() -> R:
        with _connections_as_found():
            return function(*args, **kwargs)

    return await sync_to_async(call)()


def in_async(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return an async version of a blocking method or function, with the same parameters and outcome."""

    async def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return await run_sync(method, *args, **kwargs)

    update_wrapper(called, method, assigned=("__module__", "__annotations__"))
    twin = f"a{method.__name__}"
    called.__name__, called.__qualname__ = twin, method.__qualname__.removesuffix(method.__name__) + twin
    called.__doc__ = f"`{method.__name__}`, from async code."
    return called


@contextmanager
def _connections_as_found() -> Iterator[None]:
    found_open = set()
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            found_open.add(connection.alias)
            if not connection.in_atomic_block and _may_be_cut(connection) and not connection.is_usable():
                connection.close()
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            if connection.alias not in found_open and not connection.in_atomic_block:
                connection.close()


def _may_be_cut(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server may have closed the session; no round trip: the socket of an idle session has no data
    to read.
    """
    if connection.errors_occurred:
        return True
    try:
        with connection.wrap_database_errors:
            descriptor = connection.connection.fileno()
    except AttributeError:
        return False  # a database without a socket, SQLite
    except Error:  # the driver knows that the connection is closed
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


T = TypeVar("T")
#: A wait in progress: yields the seconds to pause before the next query, and returns the result.
Waiting: TypeAlias = Generator[float, None, T]

logger = logging.getLogger("durable.operations")

#: The likely reason why a wait inside a transaction does not end.
IN_TRANSACTION = (
    "this waits inside transaction.atomic() (or ATOMIC_REQUESTS), and no worker sees what is started or sent there before "
    "that commits: wait after it"
)
UNENDED = tuple(each for each in RunState if each not in ENDED)
_LOOK_EVERY = (0.01, 0.5)  # seconds between two queries for a result: the first interval, the longest one


def require_step(action: str, remedy: str) -> None:
    """Raise OutsideStepError if workflow code calls this between two steps: each replay would repeat `action`."""
    if running_run() is not None and not is_in_step():
        raise OutsideStepError(action, remedy)


def announce(at: Runtime, queue: str, wake_at: datetime | None) -> None:
    """Notify workers if a run is due now, or timers if it becomes due later."""
    if wake_at is None:
        return
    if wake_at <= at.now():
        at.notify({queue})
    else:
        at.notify_at(queue, wake_at)


def announce_parent(at: Runtime, run: RunRecord) -> None:
    """Notify the queues of runs that the end of this run may have made due: its parent, and a child that got its
    turn.
    """
    if run.state in ENDED and run.parent_id is not None and (parent := at.store.get(run.parent_id)) is not None:
        announce(at, parent.queue, parent.wake_at)
        at.notify({run.queue})


def check_state(run: RunRecord, action: str, allowed: Sequence[RunState]) -> None:
    """Raise InvalidTransitionError unless the run is in one of the allowed states."""
    if run.state not in allowed:
        raise InvalidTransitionError(run.state, allowed, action, run.id)


def check_not_an_order(workflow: str, action: str) -> None:
    """Raise BulkOrderError for the workflow that performs bulks: it acts with another user's permissions."""
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
    """Call `look` at growing intervals until it returns a result, and return that.

    Yields the seconds to pause before the next call. After `timeout`, raises TimeoutError with `problem` and, from
    `describe()`, the run's state. Inside a transaction the error names that transaction as the likely reason, and is
    raised at once if the caller would wait forever. The pauses count in addition to the clock, which a test may have
    stopped.
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

    Each query is a short call; no thread or connection is held between two of them.
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
