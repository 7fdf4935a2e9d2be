"""Event loops for asynchronous bodies and steps: new ones or, within `keep`, clean ones of earlier calls.

Owns where such a loop runs, how long it lives, and that nothing on it outlives its call. asgiref does the rest: the
caller's context, its exceptions, and synchronous calls in the caller's thread.

A thread and a loop of its own cost a call ten times what an idle loop costs, and asgiref makes both anew for each call,
unless the calling thread has a loop that waits for it. For the length of one call, an idle loop is lent to the thread
as that loop. Other threads, to which the call may hand its context, do not see it: none of them can wait for a loop
that is busy with something else.

Each call ends as `asyncio.run` ends: tasks that are left are cancelled and waited for, and so are threads of its
executor, but for `PATIENCE` only. Tasks that continue after that, because they swallow their cancellation, are left
behind: the call returns, and the loop runs on in its thread until they have ended, without affecting other calls.
`left_behind` returns them, and the worker ends its process if they last too long.

A loop on which anything else is left is closed and not used again: a callback, a timer, a connection, an asynchronous
generator, a thread of its executor, a setting. So is one that a task has stopped, and one of another class than
asyncio's own, which cannot be looked into.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from asgiref.sync import AsyncToSync, SyncToAsync, async_to_sync

from durable.core.control_flow import ControlFlow
from durable.core.current import running_place
from durable.drivers.threads import LONGEST_WAIT, KeptThreads

logger = logging.getLogger("durable.pass")

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds for which a call waits for what it has left on its loop.
PATIENCE: Final = 1.0

#: What user code may set on asyncio's own loop.
_SETTINGS: Final = (
    "_debug",
    "_default_executor",
    "_exception_handler",
    "_selector",
    "_task_factory",
    "slow_callback_duration",
)


def run(function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the coroutine function on an event loop; return or raise its outcome.

    This thread waits meanwhile, and makes the synchronous calls that `sync_to_async` sends it. If a loop already waits
    for this thread (of an asynchronous test or an outer workflow), the function runs on that.
    """
    if not _threads.are_kept or not _can_be_lent_a_loop():
        return async_to_sync(function)(*args, **kwargs)
    return (_threads.take() or _LoopThread()).run(function, *args, **kwargs)


def keep() -> AbstractContextManager[None]:
    """Keep loops within the block. At its end, close the idle ones and wait for that."""
    return _threads.keep()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A task or thread that a call has left on its loop, cancelled at `since` (monotonic).

    `what` names it. `location` is the step's, "" for a workflow's own code.
    """

    run_id: str
    location: str
    what: str
    since: float


def left_behind() -> list[LeftBehind]:
    """Return the tasks and threads left behind in this process that still run, including those of calls still waiting
    for them.
    """
    return list(_left_behind.values())


_left_behind: dict[_LoopThread, LeftBehind] = {}

os.register_at_fork(after_in_child=_left_behind.clear)


class _LoopThread:
    """A daemon thread with an event loop, which runs until it is ended."""

    def __init__(self) -> None:
        self._loop: Any = asyncio.new_event_loop()  # Any: `_is_as_made` looks into it
        self._as_made = _settings(self._loop)
        self._is_as_new = self._is_done = self._is_ending = False
        self._broken_by: BaseException | None = None
        self._left: set[asyncio.Task[Any]] = set()
        self._waiting: Any = None  # asgiref's executor of the thread that waits
        self._timer: asyncio.TimerHandle
        self._thread = threading.Thread(target=self._serve, name="durable-loop", daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._is_as_new = self._is_done = False
        try:
            with _lent(self._loop):
                return async_to_sync(self._call)(function, *args, **kwargs)
        finally:
            if self._broken_by is not None:
                raise self._broken_by
            if self._left:
                _tell_of(_left_behind.get(self))
            if not self._is_as_new or not _threads.give_back(self):
                self.end()

    def end(self) -> None:
        """End the thread, and wait for its end.

        If an interruption of the caller has cut a call off, its tasks are cancelled, and no code waits for them.
        """
        self._is_ending = True
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._is_done:
            self._thread.join()

    def _serve(self) -> None:
        try:
            with asyncio.Runner(
                loop_factory=lambda: self._loop
            ) as runner:  # which cancels, waits and closes at its end
                self._run_forever(runner.get_loop())
        finally:
            _left_behind.pop(self, None)

    def _run_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._wake()
            loop.run_forever()
            if self._left:
                loop.run_until_complete(asyncio.wait(self._left))  # not cancelled again: it may be cleaning up
        except BaseException as error:  # SystemExit or KeyboardInterrupt, which a task has raised
            self._broken_by = error
        else:
            if not self._is_ending:
                self._broken_by = RuntimeError("a task has stopped the event loop before the call returned")

    def _wake(self) -> None:
        """Let the thread that waits go on for a moment, and again after `LONGEST_WAIT`."""
        self._timer = self._loop.call_later(LONGEST_WAIT, self._wake)
        if self._waiting is not None:
            with suppress(RuntimeError):  # it was interrupted, and waits no more
                type(self._waiting).submit(self._waiting, int)  # of the type: this call takes no turn

    async def _call(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any, **kwargs: Any) -> R:
        with _executor_of(asyncio.get_running_loop()) as self._waiting:
            try:
                return await function(*args, **kwargs)
            finally:
                await self._clean()
                self._waiting = None

    async def _clean(self) -> None:
        """Make the loop as new; if that fails, leave it as `asyncio.run` does before it closes a loop."""
        loop = asyncio.get_running_loop()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            self._note(sorted(map(_name, left)))
            self._left = await _cancelled(left, loop)
        for _ in range(3):  # the callbacks of what has just ended
            if self._loop._ready:
                await asyncio.sleep(0)
        self._is_as_new = not self._left and loop is self._loop and self._is_as_made()
        if not self._is_as_new:
            self._note([*sorted(map(_name, self._left)), "a thread or an asynchronous generator"])
            _, closing = await asyncio.wait({asyncio.create_task(_close(loop))}, timeout=PATIENCE)
            if self._left and not closing:
                self._note(sorted(map(_name, self._left)))
            self._left |= closing
        self._is_done = not self._left
        if self._is_done:
            _left_behind.pop(self, None)

    def _note(self, names: list[str]) -> None:
        run_id, _, location = running_place()
        noted = _left_behind.get(self)
        since = time.monotonic() if noted is None else noted.since
        _left_behind[self] = LeftBehind(run_id=run_id, location=location, what=" and ".join(names), since=since)

    def _is_as_made(self) -> bool:
        loop = self._loop
        is_asyncios_own = type(loop) is asyncio.SelectorEventLoop
        return (
            is_asyncios_own
            and _settings(loop) == self._as_made
            and not loop._ready
            and not loop._asyncgens
            and not loop._transports
            and all(timer.cancelled() or timer is self._timer for timer in loop._scheduled)
            and len(loop._selector.get_map()) == 1  # its own pipe
        )


def _settings(loop: Any) -> tuple[Any, ...]:
    """Return what user code may have changed on the loop, and the names of all attributes, to detect replaced
    methods.
    """
    try:
        state = vars(loop)
    except TypeError:
        return ()
    return (*(state.get(name) for name in _SETTINGS), frozenset(state))


async def _close(loop: asyncio.AbstractEventLoop) -> None:
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _name(task: asyncio.Task[Any]) -> str:
    return f"the task {getattr(task.get_coro(), '__qualname__', task.get_name())}"


def _tell_of(left: LeftBehind | None) -> None:
    if left is not None:  # it has not ended yet
        whose = f'step "{left.location}"' if left.location else "the workflow's code"
        text = "%s of run %s has left %s, which goes on after it was cancelled: the run continues without it"
        about = {"run_id": left.run_id, "location": left.location}
        logger.warning(text, whose, left.run_id, left.what, extra=about)


async def _cancelled(left: set[Any], loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    """Cancel the tasks; return those that continue nevertheless."""
    for task in left:
        task.cancel()
    ended, going_on = await asyncio.wait(left, timeout=PATIENCE)
    for task in ended:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ControlFlow):
            what = "a task that a workflow or a step has left raised an error when it was cancelled"
            loop.call_exception_handler({"message": what, "exception": error, "task": task})
    return going_on


# -- asgiref's notes


def _can_be_lent_a_loop() -> bool:
    """Return True if asgiref keeps the loop of a thread under its undocumented name, and this thread has none."""
    known = getattr(SyncToAsync, "threadlocal", None)
    loop = getattr(known, "main_event_loop", None)
    has_one = loop is not None and not loop.is_closed() and getattr(known, "main_event_loop_pid", None) == os.getpid()
    return known is not None and not has_one


@contextmanager
def _lent(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let asgiref find `loop` as the one that waits for this thread."""
    known: Any = SyncToAsync.threadlocal
    before = getattr(known, "main_event_loop", None), getattr(known, "main_event_loop_pid", None)
    known.main_event_loop, known.main_event_loop_pid = loop, os.getpid()
    try:
        yield
    finally:
        known.main_event_loop, known.main_event_loop_pid = before


@contextmanager
def _executor_of(loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """Yield asgiref's executor of the thread that waits for `loop`, and let asgiref also find it from tasks that have
    not inherited its context.
    """
    known: dict[Any, Any] = getattr(AsyncToSync, "loop_thread_executors", {})
    executor = getattr(getattr(AsyncToSync, "executors", None), "current", None)
    if executor is None or loop in known:
        yield executor
        return
    known[loop] = executor
    try:
        yield executor
    finally:
        del known[loop]


_threads: KeptThreads[_LoopThread] = KeptThreads()
