"""The host of a driver, and calls of user code for both drivers.

The host provides commits, contexts for bodies, and places where code may run.

Errors of user code must not end the worker or its event loop, nor break descriptions. Owns which exceptions of a step's
function or a body are passed on unchanged (errors that can be described, the engine's control flow, the worker's own
end), and as which failure the others are reported.

Calls of steps' functions have their timeouts. Must not decide what follows from the outcome of a call: steps do.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, Protocol, TypeVar

from durable.core.control_flow import ControlFlow
from durable.core.current import running_step, timed_step
from durable.core.effects import Ask, Body, Call, Save
from durable.core.errors import AttemptAbandonedError, HeartbeatTimeoutError, StepTimeoutError, WorkflowError
from durable.core.scope import Scope
from durable.core.words import is_readable, kind_of
from durable.drivers import loop_threads
from durable.drivers.threads import ThreadDelegate
from durable.drivers.timeouts import HeartbeatTimer, InterruptibleTask, TimedOut, arose_from, call_with_timeout


class SentSave(Protocol):
    """An ordinary save whose commit is sent by an event loop, which has the connection for itself until `close`."""

    @property
    def is_flushed(self) -> bool:
        """False as long as part of the statement waits for the socket to be writable."""

    @property
    def is_plain(self) -> bool:
        """Whether the answer asks for nothing. Known once it is there."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to take from the server."""

    def send(self) -> bool:
        """Send what the journal holds. Return False if it cannot be sent: it is as if this save had not begun.

        The caller watches `fileno` by now, and no descriptor of an earlier save that was another one.
        """

    def proceed(self) -> bool:
        """Send what is left and take what has come. Return True once the answer or an error is there. Never blocks."""

    def close(self) -> None:
        """Leave the connection to its thread. The descriptor stays open."""

    def finish(self) -> None:
        """Do what follows from the answer, as `Host.save` does. In the thread of the connection unless `is_plain`."""


class SentSaves(Protocol):
    """Opens saves for an event loop."""

    def open(self) -> SentSave | None:
        """Open a save of what the journal holds, without sending it; None if it has to be made by `Host.save`."""

    def close(self) -> None:
        """Close the descriptors of the saves. None is under way."""


class Host(Protocol):
    """The surroundings of one pass."""

    #: True to run branches one after the other, in the caller's thread.
    sequential_branches: bool
    #: The maximum number of threads for branches.
    max_threads: int
    #: Delegates calls of branch threads to the pass's own thread.
    delegate: ThreadDelegate

    @property
    def is_observed(self) -> bool:
        """Whether calls are reported to observers, in the thread or task that makes them."""

    def save(self, effect: Save) -> None:
        """Commit what the journal holds; return when it is committed."""

    def sent_saves(self) -> SentSaves | None:
        """Return the saves that an event loop sends on the connection of this thread, which waits for the loop.

        None if it sends none.
        """

    def save_atomically(self, effect: Call, call: Callable[[], None], record: Callable[[], None]) -> None:
        """Run `call`, `record` and a commit in one transaction of the store's database.

        `record` changes the step's entry. No other commit of the pass may write that entry before: it is not final yet.
        """

    def ask(self, question: Ask) -> Any:
        """Return the answer of the store, whose type the question's class names. Raises LeaseLost."""

    def wait(self, seconds: float) -> None:
        """Wait in memory; less if the pass is evicted meanwhile."""

    async def async_wait(self, seconds: float) -> None:
        """Wait in memory without blocking the event loop."""

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Return the context manager around the call of a user's function, in the thread or task that calls it.

        It may be entered again for what the function has returned, unless calls are observed.
        """

    def calling_here(self, call: Call) -> AbstractContextManager[None]:
        """Return the context manager around a function in its own thread: transactions that it leaves open are an
        error.
        """

    def is_evicted(self) -> bool:
        """Return True if the pass has to end."""

    def sync_context(self, scope: Scope, driver: Any) -> Any:
        """Return the context for a synchronous body."""

    def async_context(self, scope: Scope, driver: Any) -> Any:
        """Return the context for an asynchronous body."""

    def before_branches(self) -> None:
        """Check, in the pass's own thread, that no transaction is open before it commits for branches in others."""

    def branch_thread(self) -> AbstractContextManager[None]:
        """Return the context manager around branches in their own thread: it cleans up before and after."""

    def branch_thread_ends(self) -> None:
        """Clean up in a branch thread before it ends: close database connections, for example."""

    def interrupted(self) -> None:
        """Clean up after a timeout has interrupted a step at any point: drop a half-used connection, for example."""


def refuse_lazy_body(value: Any, function: Callable[..., Any]) -> None:
    """Raise TypeError if a body returned a generator or an unawaited coroutine: none of its code has run then."""
    if inspect.iscoroutine(value):
        value.close()
        kind, advice = "a coroutine", "write `def`, or `async def` for the workflow itself to have asynchronous bodies"
    elif inspect.isgenerator(value) or inspect.isasyncgen(value):
        kind, advice = "a generator", "repeat with ctx.loop and wait with ctx.queue.next instead of yielding"
    else:
        return
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(f"the body {name} returned {kind}, so none of its code has run: {advice}")


T = TypeVar("T")

#: Exceptions that are not errors, and must not end a worker or a test, wherever they are raised.
_UNWELCOME: Final = (SystemExit, GeneratorExit, asyncio.CancelledError)


def call_readably(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`; replace an error that cannot be read by a RuntimeError that says so."""
    try:
        return function(*args)
    except BaseException as error:
        if is_readable(error):
            raise
        kind = kind_of(error)
    # outside the handler, so that it does not become the error's context
    raise RuntimeError(f"{kind} was raised, an exception whose attributes cannot be read")


def step_failure(effect: Call, error: BaseException, host: Host) -> RuntimeError | None:
    """Return the failure of a step's attempt that raised `error`; None if `error` is passed on unchanged."""
    if _goes_on(error, host):
        return None
    if isinstance(error, SystemExit):
        return RuntimeError(f'step "{effect.name}" called sys.exit({error.code!r})')
    return RuntimeError(f'step "{effect.name}" raised {kind_of(error)}')


def body_failure(effect: Body, error: BaseException, host: Host) -> RuntimeError | None:
    """Return the workflow's error for a body that raised `error`; None if `error` is passed on unchanged."""
    if _goes_on(error, host):
        return None
    name = getattr(effect.function, "__qualname__", "the workflow's code")
    if isinstance(error, SystemExit):
        return RuntimeError(f"{name} called sys.exit({error.code!r}): raise an error to fail the run, or return")
    return RuntimeError(
        f"{name} raised {kind_of(error)}, which is not an Exception: raise an error to fail the run, or return"
    )


def _goes_on(error: BaseException, host: Host) -> bool:
    kind = type(error)  # not isinstance, which would run code of the object
    if issubclass(kind, Exception | ControlFlow):
        return True
    if issubclass(kind, SystemExit):
        return host.is_evicted()  # the worker itself ends, after a second signal
    if kind is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True  # Ctrl+C in a terminal
    if issubclass(kind, BaseExceptionGroup):  # of a TaskGroup, in one of whose tasks an operation has ended the pass
        assert isinstance(error, BaseExceptionGroup)
        if error.subgroup(ControlFlow) is not None:
            return False
    return host.sequential_branches and not issubclass(kind, _UNWELCOME)  # a test's own: pytest.fail(), for example


def call_step(effect: Call, host: Host) -> Any:
    """Call a step's function in this thread; an async one on an event loop that nothing else uses meanwhile."""
    with host.calling(effect), host.calling_here(effect), running_step(effect.info):
        value = _called(effect, host)
        if inspect.isawaitable(value):
            value = loop_threads.run(within_timeout, effect, value, host)
        return value


def call_unawaited(effect: Call, host: Host) -> Any:
    """Call a step's function in this thread; return its value, awaitable or not.

    The caller is inside `host.calling`.
    """
    with host.calling_here(effect), running_step(effect.info):
        return _called(effect, host)


def _called(effect: Call, host: Host) -> Any:
    step = timed_step(effect)
    try:
        with step:
            return call_with_timeout(lambda: call_readably(effect.function, *effect.args), effect.timeout, step)
    except TimedOut:
        host.interrupted()
        raise _interrupted(effect, step) from None
    except BaseException as error:
        failure = step_failure(effect, error, host)
        if failure is None:
            raise
        raise failure from error


def call_atomically(effect: Call, host: Host) -> Any:
    """Make the call, its record and the commit one transaction."""
    value: Any = None
    with ExitStack() as until_committed:

        def call() -> None:
            nonlocal value
            until_committed.enter_context(running_step(effect.info))  # on_commit hooks run within the step
            value = call_step(effect, host)

        def record() -> None:
            assert effect.record is not None
            effect.record(value)

        host.save_atomically(effect, call, record)
    return value


async def within_timeout(effect: Call, awaitable: Awaitable[Any], host: Host) -> Any:
    """Await the awaitable of a step's function, and cancel it at the timeout. Raises StepTimeoutError."""
    step = timed_step(effect)
    try:
        async with asyncio.timeout(effect.timeout if effect.timeout > 0 else None) as limit:
            step.awaitable, step.interruptible = awaitable, InterruptibleTask(limit)
            with step, HeartbeatTimer(limit, step):
                return await _readably(effect, awaitable, host)
    except TimeoutError:
        if not limit.expired():
            raise
        raise _interrupted(effect, step) from None
    except Exception as error:
        if limit.expired() and arose_from(error, asyncio.CancelledError):
            raise _interrupted(effect, step) from error
        raise


def _interrupted(effect: Call, step: timed_step) -> WorkflowError:
    if step.abandoned_at is not None:
        return AttemptAbandonedError(effect.name)
    if step.has_no_sign:
        return HeartbeatTimeoutError(effect.name, effect.info.heartbeat)
    return StepTimeoutError(effect.name, effect.timeout)


async def _readably(effect: Call, awaitable: Awaitable[Any], host: Host) -> Any:
    try:
        return await awaitable
    except BaseException as error:
        task = asyncio.current_task()
        if type(error) is asyncio.CancelledError and task is not None and task.cancelling():
            raise  # this task itself is cancelled
        if not is_readable(error):
            kind, failure = kind_of(error), None
        else:
            failure = step_failure(effect, error, host)
            if failure is None:
                raise
            raise failure from error
    raise RuntimeError(f'step "{effect.name}" raised {kind}, whose attributes cannot be read')
