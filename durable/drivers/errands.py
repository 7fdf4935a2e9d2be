"""Let branch threads delegate store calls to the pass's own thread, which already has a database connection.

Owns passing calls to that thread and their outcomes back. A connection for each branch thread, opened for commits
alone, takes longer than most joins. While the pass's thread does not serve, a branch thread makes its calls itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

__all__ = ["ThreadDelegate"]

T = TypeVar("T")


class ThreadDelegate:
    """Calls of other threads, made by the thread that created this object."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked: SimpleQueue[_Errand | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_served = False

    def are_mine(self) -> bool:
        """Return True in the thread that makes the calls."""
        return threading.get_ident() == self._thread

    def do(self, work: Callable[[], T]) -> T:
        """Call `work` in that thread; return what it returns or raise what it raises."""
        if self.are_mine():
            return work()
        errand = _Errand(work)
        with self._lock:
            if self._is_served:
                self._asked.put(errand)
            else:
                errand.decline()
        return errand.outcome()  # type: ignore[no-any-return]  # of this very work

    @contextmanager
    def served(self) -> Iterator[None]:
        """Allow delegation within the block, which calls `serve` and starts the delegating threads.

        At its end, calls that were not made are left to the threads that asked for them.
        """
        with self._lock:
            self._is_served = True
        try:
            yield
        finally:
            with self._lock:
                self._is_served = False
            self._decline_what_is_left()

    def serve(self, asking: int) -> None:
        """Make the calls of `asking` other threads, until each of them has called `leave`."""
        while asking:
            errand = self._asked.get()
            if errand is None:
                asking -= 1
            else:
                errand.do()

    def leave(self) -> None:
        """Note that this thread delegates no more calls."""
        self._asked.put(None)

    def _decline_what_is_left(self) -> None:
        while True:
            try:
                errand = self._asked.get_nowait()
            except Empty:
                return
            if errand is not None:
                errand.decline()


class _Errand:
    __slots__ = ("_done", "_error", "_is_declined", "_value", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._done = threading.Lock()
        self._done.acquire()
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_declined = False

    def do(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # raised in the delegating thread
            self._error = error
        self._done.release()

    def decline(self) -> None:
        self._is_declined = True
        self._done.release()

    def outcome(self) -> Any:
        self._done.acquire()
        if self._is_declined:
            return self._work()
        if self._error is not None:
            raise self._error
        return self._value
