"""Make calls in the thread that owns a pass: it has the connection, and the transactions that are open in it.

`ThreadDelegate` sends calls there from branch threads, and `LoopDelegate` from the event loop of an async body, which
runs in another thread while the owner waits for it. Owns how a call gets to the owner and how its outcome comes back.
Must not know the functions that it calls.

**No `concurrent.futures.Future` brings outcomes to the threads of branches.** The owner may be the main thread, in
which a signal handler can raise an exception after nearly every instruction: RQ's job timeout, or Ctrl+C. A Future
guards its state with a `threading.Condition`, which is Python code: an exception raised inside it can leave its lock
held forever, so that the waiting thread hangs. The put of a `SimpleQueue` cannot be cut in two, and may be repeated. So
a call that was interrupted before its outcome was put is left to the thread that asked for it.

`KeptThreads` are idle threads kept for later work. Branch threads are new or, within `keep`, left by earlier branches:
a branch thread has its own database connection, and opening one takes longer than most branches. So a worker keeps the
threads from one pass to the next, for as long as its job lasts. Must not know the work.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

import asgiref.sync
from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async

#: The longest wait of a pass's own thread, in seconds. Python calls the handler of a signal when its main thread goes
#: on: if the signal comes just before a wait, or another thread gets it, that is when the wait is over.
LONGEST_WAIT: Final = 1.0


class _Thread(Protocol):
    def end(self) -> None:
        """End the thread, which is idle, and wait for its end."""


T = TypeVar("T", bound=_Thread)


@dataclass(slots=True)
class _State(Generic[T]):
    """Whether threads are kept, and the idle ones."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    idle: list[T] = field(default_factory=list)


class KeptThreads(Generic[T]):
    """Idle threads of one kind, within `keep`. A forked child has none: its parent's threads do not run there."""

    def __init__(self) -> None:
        self._state: _State[T] = _State()
        self._inherited: list[_State[T]] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._inherited.append(self._state)  # what its threads own is shared with the parent: nothing may close it here
        self._state = _State()

    @property
    def are_kept(self) -> bool:
        """Whether a `keep` block is open in this process."""
        return self._state.depth > 0

    def take(self) -> T | None:
        """Return an idle thread, which then belongs to the caller; None if there is none."""
        with self._state.lock:
            return self._state.idle.pop() if self._state.idle else None

    def give_back(self, thread: T) -> bool:
        """Keep the thread. Return False if threads are not kept: the caller ends it."""
        with self._state.lock:
            if self._state.depth:
                self._state.idle.append(thread)
            return self._state.depth > 0

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Keep threads within the block. At its end, end the idle ones and wait for that."""
        state = self._state
        with state.lock:
            state.depth += 1
        try:
            yield
        finally:
            if state.pid == os.getpid():  # else this is a child that was forked within the block
                self._leave(state)

    def _leave(self, state: _State[T]) -> None:
        with state.lock:
            state.depth -= 1
            ended = [] if state.depth else state.idle
            if not state.depth:
                state.idle = []
        for thread in ended:
            thread.end()


Work = Callable[[], object]


def run(work: Work, at_end: Work) -> Callable[[], object]:
    """Call `work` in another thread, and `at_end` in the same one before it ends. Return a function that waits for the
    end of `work`, to be called once.
    """
    return (_threads.take() or _BranchThread()).give(work, at_end)


def keep() -> AbstractContextManager[None]:
    """Keep threads within the block. At its end, end the idle ones and wait for that."""
    return _threads.keep()


class _BranchThread:
    """A daemon thread that does one piece of work after the other until it is no longer kept."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Work, Work, SimpleQueue[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="durable-branch", daemon=True)
        self._thread.start()

    def give(self, work: Work, at_end: Work) -> Callable[[], object]:
        # not an Event: an exception raised by a signal handler in its wait() could leave its lock held for ever
        done: SimpleQueue[None] = SimpleQueue()
        self._given.put((work, at_end, done))
        return done.get

    def end(self) -> None:
        self._given.put(None)
        self._thread.join()

    def _serve(self) -> None:
        at_end: Work | None = None
        while (given := self._given.get()) is not None:
            work, at_end, done = given
            try:
                work()
            except BaseException:
                self._finish(at_end, done)
                raise
            if not _threads.give_back(self):
                self._finish(at_end, done)
                return
            done.put(None)
        if at_end is not None:
            at_end()

    def _finish(self, at_end: Work, done: SimpleQueue[None]) -> None:
        try:
            at_end()
        finally:
            done.put(None)


_threads: KeptThreads[_BranchThread] = KeptThreads()


Result = TypeVar("Result")

#: What a function returned or raised, as a value: a future that is given a StopIteration never ends.
Outcome = tuple[Result | None, BaseException | None]


def outcome_of(function: Callable[..., Result], args: tuple[Any, ...] = ()) -> Outcome[Result]:
    """Call the function; return what it returned or raised."""
    try:
        return function(*args), None
    except BaseException as error:  # raised in the thread or task that asked for the call
        return None, error


def unwrapped(outcome: Outcome[Result]) -> Result:
    """Return the outcome's value or raise its error."""
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


# -- from threads


class ThreadDelegate:
    """Calls for the thread that created this object, its owner.

    Opening a connection for each branch thread, only for commits, would take longer than most joins. While the owner
    does not serve, a branch thread makes its calls itself.
    """

    def __init__(self) -> None:
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._serving: Serving | None = None

    def is_owner(self) -> bool:
        """Return True in the thread that makes the calls."""
        return threading.get_ident() == self._owner

    def call(self, function: Callable[[], Result]) -> Result:
        """Call the function in the owner; return what it returns or raise what it raises.

        Calling the function twice must be harmless: if an interruption of the owner cuts the call off, this thread
        repeats it.
        """
        if self.is_owner():
            return function()
        with self._lock:
            asked = None if self._serving is None else self._serving.ask(function)
        return function() if asked is None else asked.result()

    @contextmanager
    def served(self) -> Iterator[Serving]:
        """Let other threads delegate calls within the block, in which the owner calls `Serving.serve`.

        At its end, calls that were not made are left to the threads that asked for them.
        """
        serving = Serving()
        with self._lock:
            self._serving = serving
        try:
            yield serving
        finally:
            with self._lock:
                self._serving = None
            serving.end()


class Serving:
    """The calls that the owner makes for other threads, while it serves them."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._open: set[_Call[Any]] = set()

    def ask(self, function: Callable[[], Result]) -> _Call[Result]:
        """Request a call of the function."""
        call = _Call(function)
        self._open.add(call)
        self._asked.put(call)
        return call

    def leave(self) -> None:
        """Declare that this thread will request no more calls."""
        self._asked.put(None)

    def serve(self, asking: int) -> None:
        """Make the calls of `asking` other threads, until each of them has called `leave`."""
        while asking:
            try:
                call = self._asked.get(timeout=LONGEST_WAIT)
            except Empty:
                continue
            if call is None:
                asking -= 1
            else:
                call.make()
                self._open.discard(call)

    def end(self) -> None:
        """Return calls without an outcome to the threads that requested them. No thread may request calls any more."""
        for call in tuple(self._open):
            call.decline()


class _Call(Generic[Result]):
    """One call, made by the owner. `result` belongs to the thread that asked for it."""

    __slots__ = ("_ended", "_function")

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._ended: SimpleQueue[Outcome[Result] | None] = SimpleQueue()

    def make(self) -> None:
        self._ended.put(outcome_of(self._function))

    def decline(self) -> None:
        self._ended.put(None)

    def result(self) -> Result:
        outcome = self._ended.get()
        return self._function() if outcome is None else unwrapped(outcome)


# -- from an event loop


class HandedOver(asyncio.Future[Outcome[Result]]):
    """The outcome of a call in another thread, or of a commit, which is not cut short.

    A task that is cancelled while it awaits the outcome is cancelled when it has it.
    """

    #: The call, if asgiref makes it: a task needs a reference.
    task: asyncio.Task[None] | None = None

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  # asyncio passes it
        return False

    def end(self, outcome: Outcome[Result]) -> None:
        """Take the outcome, unless there is one; called on the loop."""
        if not self.done():
            self.set_result(outcome)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    ended: HandedOver[Result],
    call: Callable[[], Outcome[Result]],
    at_end: Callable[[], object] = lambda: None,
) -> None:
    outcome: Outcome[Result] = None, RuntimeError("the call was cut off")
    try:
        outcome = call()
    finally:
        try:
            at_end()
        finally:
            loop.call_soon_threadsafe(ended.end, outcome)


class LoopDelegate:
    """Calls for the thread that waits for the running event loop.

    They go straight to the executor that asgiref keeps for the thread, at half the cost of asgiref's own calls.

    The thread makes calls, other code's too, or leaves its connection to the loop: they take turns, and calls go first.
    A turn is not a Lock: a signal handler's exception may leave it locked in the thread that waits for the loop. That
    thread can still take it then.
    """

    def __init__(self) -> None:
        self._executor = _executor()
        self._turn = threading.RLock()
        self._asked: set[object] = set()  # the calls that have not ended: unlike a number, it needs no lock
        if self._executor is not None:
            self._submit_to = self._executor.submit
            vars(self._executor)["submit"] = self._submit_in_turn

    def _submit_in_turn(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        self._asked.add(call := object())
        future = self._submit_to(self._in_turn, function, *args, **options)
        future.add_done_callback(lambda _: self._asked.discard(call))
        return future

    def _in_turn(self, function: Callable[..., Result], *args: Any, **options: Any) -> Result:
        with self._turn:
            return function(*args, **options)

    def take_turn(self) -> bool:
        """Keep calls waiting until `end_turn`; called by the loop. Return False if the thread has one to make."""
        return self._executor is not None and not self._asked and self._turn.acquire(blocking=False)

    def end_turn(self) -> None:
        """Let the thread make calls again."""
        self._turn.release()

    def leave(self) -> None:
        """End the calls; called by the thread itself. Wait for the loop's turn."""
        with self._turn:
            if self._executor is not None:
                vars(self._executor).pop("submit", None)

    def submit(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Outcome[Result]]:
        """Call a function of the engine in that thread; return a future of its outcome."""
        return self._submit(partial(outcome_of, function, args))

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function of the engine in that thread; return what it returns or raise what it raises."""
        return unwrapped(await self.submit(function, *args))

    async def call_user_code(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call, in that thread, a function that calls user code; return or raise its outcome.

        As in a call by asgiref, the code has a copy of the caller's context, and may call back into the running loop.
        """
        call = partial(outcome_of, function, args)
        if self._executor is not None:  # otherwise asgiref calls it
            context = contextvars.copy_context()
            call = partial(context.run, _as_by_asgiref, context, asyncio.get_running_loop(), call)
        return unwrapped(await self._submit(call))

    def hand_over(self, ended: HandedOver[Result], function: Callable[[], Result]) -> None:
        """Call a function of the engine in that thread, for the outcome of `ended`."""
        try:
            self._submit(partial(outcome_of, function), ended)
        except RuntimeError as error:  # nothing waits for the loop any more
            ended.set_result((None, error))

    def _submit(
        self, call: Callable[[], Outcome[Result]], ended: HandedOver[Result] | None = None
    ) -> asyncio.Future[Outcome[Result]]:
        loop = asyncio.get_running_loop()
        if ended is None:
            ended = HandedOver(loop=loop)
        if self._executor is not None:
            self._asked.add(ended)
            # when the loop has the outcome, it is its turn: a task may go on with a commit
            at_end = partial(self._asked.discard, ended)
            future = self._submit_to(_hand_over, loop, ended, partial(self._in_turn, call), at_end)
            future.add_done_callback(partial(self._cut_off, loop, ended))
        else:
            ended.task = asyncio.create_task(sync_to_async(partial(_hand_over, loop, ended, call))())
        return ended

    def _cut_off(self, loop: asyncio.AbstractEventLoop, ended: HandedOver[Any], future: Future[None]) -> None:
        """End a call if a signal handler's exception in the thread came before the call, or after it: asgiref's
        executor keeps the exception, and nothing else would end the wait of the loop.
        """
        if (error := future.exception()) is not None:
            self._asked.discard(ended)
            loop.call_soon_threadsafe(ended.end, (None, error))


#: What asgiref does with the context of a call in another thread; None if it no longer has this undocumented name.
_restore_context: Callable[[contextvars.Context], object] | None = getattr(asgiref.sync, "_restore_context", None)


def _executor() -> Executor | None:
    """Return asgiref's executor; None if asgiref no longer has what a call needs under these undocumented names."""
    found = getattr(getattr(AsyncToSync, "executors", None), "current", None)
    is_known = _restore_context is not None and hasattr(SyncToAsync, "threadlocal")
    return found if is_known and isinstance(found, Executor) else None


def _as_by_asgiref(
    context: contextvars.Context, loop: asyncio.AbstractEventLoop, call: Callable[[], Outcome[Result]]
) -> Outcome[Result]:
    assert _restore_context is not None, "without it there is no executor"
    _restore_context(context)  # asgiref's own variables know their thread
    known: Any = SyncToAsync.threadlocal
    known.main_event_loop, known.main_event_loop_pid = loop, os.getpid()
    return call()


async def call_in_branch_thread(
    function: Callable[[], Result], around: Callable[[], AbstractContextManager[None]], at_end: Callable[[], object]
) -> Result:
    """Call a function that calls user code in a branch thread, inside `around`; return or raise its outcome.

    It has the context of the caller. The thread calls `at_end` before it ends.
    """
    loop = asyncio.get_running_loop()
    ended: HandedOver[Result] = HandedOver(loop=loop)

    def call() -> None:
        outcome: Outcome[Result] = None, RuntimeError("the thread of a branch could not be entered or left")
        try:
            with around():
                outcome = outcome_of(function)
        finally:
            loop.call_soon_threadsafe(ended.set_result, outcome)

    wait = run(partial(contextvars.copy_context().run, call), at_end)
    try:
        return unwrapped(await ended)
    finally:
        wait()  # for what comes after the outcome, which is short
