"""Timeouts: interrupt synchronous code wherever it is; and the same for an attempt that an operator abandons.

Owns how code is interrupted. In the main thread a timer signal interrupts whatever blocks: a sleep, a socket, a query.
In other threads the exception is set asynchronously, and raised at the thread's next bytecode. The interruption derives
from KeyboardInterrupt, because database drivers and other libraries clean up after that. Python swallows an
interruption in a finalizer (a generator that is collected, `__del__`, a weak reference's callback), so it is repeated
while the call continues.

A single thread calls functions at given times, unless they are cancelled before, in place of a timer for each. Nearly
all calls are cancelled soon, which does not wake the thread. It ends after some time without calls, and starts again
when there is one. It must not know the functions that it calls.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from types import FrameType
from typing import Any, Final, TypeVar

from durable.core.current import timed_step

logger = logging.getLogger("durable.worker")

_IDLE: Final = 5.0  # seconds without calls after which the thread ends
_MOST_ENDED: Final = 100  # cancelled calls in the heap at which they are removed


@dataclass(slots=True, order=True)
class Deadline:
    """One scheduled call; `moment` is monotonic."""

    moment: float
    number: int
    call: Callable[[], object] = field(compare=False)
    is_over: bool = field(default=False, compare=False)

    def end(self) -> None:
        """Cancel the call. It may be under way already."""
        self.is_over = True
        _watchdog.note_end()


class _Watchdog:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[Deadline] = []
        self._numbers = count()
        self._ended = 0
        self._is_served = False

    def watch(self, seconds: float, call: Callable[[], object]) -> Deadline:
        new = Deadline(time.monotonic() + seconds, next(self._numbers), call)
        with self._changed:
            heapq.heappush(self._watches, new)
            if not self._is_served:
                threading.Thread(target=self._serve, name="durable-timeouts", daemon=True).start()
                self._is_served = True
            elif self._watches[0] is new:
                self._changed.notify()
        return new

    def note_end(self) -> None:
        with self._changed:
            self._ended += 1
            if self._ended > _MOST_ENDED and self._ended > len(self._watches) // 2:
                self._watches = [each for each in self._watches if not each.is_over]
                heapq.heapify(self._watches)
                self._ended = 0

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._watches:
                    self._changed.wait(_IDLE)
                if not self._watches:
                    self._is_served = False
                    return
                first = self._watches[0]
                left = first.moment - time.monotonic()
                if left > 0 and not first.is_over:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                heapq.heappop(self._watches)
            if not first.is_over:
                try:
                    first.call()
                except Exception:  # without this thread no timeout of a branch would ever happen again
                    logger.exception("the timeout of a branch could not be raised")


_watchdog = _Watchdog()


def _forget() -> None:
    """In a forked child, forget the parent's thread, which does not run here."""
    global _watchdog
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_forget)


def watch(seconds: float, call: Callable[[], object]) -> Deadline:
    """Call `call` in another thread after `seconds`, unless the deadline is ended before. It must not raise."""
    return _watchdog.watch(seconds, call)


T = TypeVar("T")

#: `signal.signal` without its conversions from and to enums, which take longer than all the rest.
_set_handler: Final[Callable[[int, Any], Any]] = import_module("_signal").signal

_SIGALRM: Final = int(signal.SIGALRM)
AGAIN: Final = 5.0  # seconds between two interruptions: the time that code has to clean up
_LONGEST: Final = 1e9  # seconds of a timer: no process lives longer, and the system takes no more than three centuries


class TimedOut(Exception):  # for the driver only, which knows the step's name
    """The call was interrupted, at its timeout or because its attempt was abandoned."""


class _Interruption(KeyboardInterrupt):
    """Raised inside the user's code."""


def arose_from(error: BaseException, interruption: type[BaseException]) -> bool:
    """Return True if `error` was raised while the interruption was propagating, for example by a failed clean-up.

    For example Django, interrupted in its COMMIT, raises an error about the state of the connection.
    """
    seen: set[int] = set()  # code may have put errors into each other's context
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, interruption):
            return True
        seen.add(id(found))
        found = found.__context__
    return False


def call_with_timeout(call: Callable[[], T], timeout: float, step: timed_step) -> T:
    """Return `call()`, interrupted after `timeout` seconds (0 for none) or when `step` is abandoned.

    Raises TimedOut.
    """
    if threading.current_thread() is threading.main_thread():
        return _call_with_signal(call, timeout, step)
    return _call_with_watchdog(call, timeout, step)


def _call_with_signal(call: Callable[[], T], timeout: float, step: timed_step) -> T:
    is_running = True

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if limit <= 0 and step.abandoned_at is None:  # a timer of other code
            if callable(before):
                before(signum, frame)
        elif is_running:
            if has_heartbeat and step.abandoned_at is None and (left := step.time_left()) > 0:
                signal.setitimer(signal.ITIMER_REAL, min(left, _LONGEST), AGAIN)  # it has sent a heartbeat
                return
            raise _Interruption

    has_heartbeat = step.info.heartbeat > 0
    limit = _first_limit(timeout, step)

    before = _set_handler(_SIGALRM, interrupt)
    began, outer = time.monotonic(), 0.0
    try:
        try:  # the timer may fire before the next line
            step.interruptible = _MAIN_THREAD
            if limit > 0:
                outer, _ = signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
            return call()
        finally:
            is_running = False
            step.interruptible = None
    except _Interruption:
        raise TimedOut from None
    except Exception as error:
        if arose_from(error, _Interruption):
            raise TimedOut from error
        raise
    finally:
        is_running = False
        step.interruptible = None
        while step.is_interrupting:  # the signal must not come after the handler has gone
            time.sleep(0)
        if limit > 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
        _set_handler(_SIGALRM, before)
        if outer:  # a timer of other code continues with its remaining time
            signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (time.monotonic() - began)))


def _first_limit(timeout: float, step: timed_step) -> float:
    """Return the seconds until a call is first checked: its timeout or heartbeat, 0 for never."""
    limits = [each for each in (timeout, step.info.heartbeat) if each > 0]
    return min(*limits, _LONGEST) if limits else 0.0


class _MainThread:
    """The main thread during a call that a signal may interrupt."""

    def interrupt(self, step: timed_step) -> None:
        # no lock, because the main thread may be interrupted while it holds one; the order of the two flags decides
        step.is_interrupting = True
        try:
            main = threading.main_thread().ident
            if step.interruptible is self and main is not None and callable(signal.getsignal(_SIGALRM)):
                signal.pthread_kill(main, _SIGALRM)
        finally:
            step.is_interrupting = False


_MAIN_THREAD: Final = _MainThread()


class InterruptibleTask:
    """A task in a block of `asyncio.timeout`, which ends at once when the step is abandoned."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()

    def interrupt(self, _step: timed_step) -> None:
        """End the block as at its timeout. Code that swallows the cancellation is not cancelled again."""
        with suppress(RuntimeError):  # the loop is closed: the task has ended
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        with suppress(RuntimeError):  # the block has ended, or is ending
            self._limit.reschedule(self._loop.time())


def _call_with_watchdog(call: Callable[[], T], timeout: float, step: timed_step) -> T:
    target = _Target(threading.get_ident(), step)
    limit = _first_limit(timeout, step)
    try:
        try:  # the time may be over before the next line
            step.interruptible = target
            if limit > 0:
                target.watch(limit)
            return call()
        finally:
            target.leave()
    except _Interruption:
        raise TimedOut from None
    except Exception as error:
        if arose_from(error, _Interruption):
            raise TimedOut from error
        raise
    finally:
        target.end()


class _Target:
    """A thread that may be interrupted until its call has ended."""

    def __init__(self, thread_id: int, step: timed_step) -> None:
        self._thread_id = thread_id
        self._step = step
        self._lock = threading.Lock()
        self._is_running = True
        self._has_fired = False
        self._watch: Deadline | None = None

    def watch(self, timeout: float) -> None:
        with self._lock:
            self._watch = watch(timeout, self._interrupt)

    def _interrupt(self) -> None:
        with self._lock:
            if self._is_running:
                if self._step.info.heartbeat > 0 and not self._has_fired and (left := self._step.time_left()) > 0:
                    self._watch = watch(left, self._interrupt)  # it has sent a heartbeat
                    return
                self._has_fired = True
                self._watch = watch(AGAIN, self._interrupt)
                _raise_in(self._thread_id, _Interruption)

    def interrupt(self, _step: timed_step) -> None:
        """Interrupt the thread once."""
        with self._lock:
            if self._is_running:
                self._has_fired = True
                _raise_in(self._thread_id, _Interruption)

    def leave(self) -> None:
        with self._lock:
            self._is_running = False
        if self._has_fired:
            # The exception is set and may not be raised yet: it must not be raised later, in the engine.
            for _ in range(1000):
                time.sleep(0)

    def end(self) -> None:
        """End the deadline for good. `leave` may have been interrupted, but not twice, so no lock is needed."""
        self._is_running = False
        if self._watch is not None:
            self._watch.end()


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    import ctypes  # few processes interrupt a thread

    set_async_exc: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_async_exc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


class HeartbeatTimer:
    """Ends a block of `asyncio.timeout` when the heartbeat of its step expires. Use as a context manager."""

    def __init__(self, limit: asyncio.Timeout, step: timed_step) -> None:
        self._limit = limit
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._step.info.heartbeat > 0:
            self._look()

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if (left := self._step.time_left()) > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        with suppress(RuntimeError):  # the block has ended, or is ending
            self._limit.reschedule(self._loop.time())
