"""Threads for branches: new ones or, within `keep`, those that earlier branches have left.

Owns when such a thread begins and ends. A branch thread has a database connection of its own, and opening one takes
longer than most branches. So a worker keeps the threads from one pass to the next, for as long as its job lasts. Must
not know the work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

__all__ = ["keep", "run"]

Work = Callable[[], object]


@dataclass(slots=True)
class _Keeper:
    """Whether threads are kept, and the idle ones."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    idle: list[_BranchThread] = field(default_factory=list)


_keeper = _Keeper()


def _forget() -> None:
    """In a forked child, forget the parent's threads, which do not run here."""
    global _keeper
    _keeper = _Keeper()


os.register_at_fork(after_in_child=_forget)


def run(work: Work, at_end: Work) -> Callable[[], object]:
    """Call `work` in another thread, and `at_end` in the same one before it ends. Return a function that waits for the
    end of `work`, to be called once.
    """
    with _keeper.lock:
        thread = _keeper.idle.pop() if _keeper.idle else None
    return (thread or _BranchThread()).give(work, at_end)


@contextmanager
def keep() -> Iterator[None]:
    """Keep threads within the block. At its end, end the idle ones and wait for that."""
    keeper = _keeper
    with keeper.lock:
        keeper.depth += 1
    try:
        yield
    finally:
        with keeper.lock:
            keeper.depth -= 1
            ended = [] if keeper.depth else keeper.idle
            if not keeper.depth:
                keeper.idle = []
        for thread in ended:
            thread.end()


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
            if not self._is_kept():
                self._finish(at_end, done)
                return
            done.put(None)
        if at_end is not None:
            at_end()

    def _is_kept(self) -> bool:
        with _keeper.lock:
            if _keeper.depth:
                _keeper.idle.append(self)
            return _keeper.depth > 0

    def _finish(self, at_end: Work, done: SimpleQueue[None]) -> None:
        try:
            at_end()
        finally:
            done.put(None)
