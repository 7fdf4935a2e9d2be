"""What threads of branches have another one do: the pass's own, which has a connection to the store open already.

Owns the way there and back. A connection of its own for each thread, opened for commits alone, takes longer than most
joins. Where nobody serves, a thread does its errands itself.
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
    """The errands that the thread which made this does for others."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked: SimpleQueue[_Errand | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_served = False

    def are_mine(self) -> bool:
        """Whether this is the thread that does them."""
        return threading.get_ident() == self._thread

    def do(self, work: Callable[[], T]) -> T:
        """Have `work` done; what it returns or raises."""
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
        """Around `serve`, and the start of those who ask; what they ask for and nobody has done they do themselves."""
        with self._lock:
            self._is_served = True
        try:
            yield
        finally:
            with self._lock:
                self._is_served = False
            self._decline_what_is_left()

    def serve(self, asking: int) -> None:
        """Do what so many others ask for, until each of them has called `leave`."""
        while asking:
            errand = self._asked.get()
            if errand is None:
                asking -= 1
            else:
                errand.do()

    def leave(self) -> None:
        """This thread asks for no more."""
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
        except BaseException as error:  # for who asked
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
