"""Threads for branches: new ones, or, where somebody keeps them, those that earlier branches have left.

Owns when such a thread begins and ends. A branch's thread has a database connection of its own, and opening that takes
longer than most branches; a worker therefore keeps the threads from one pass to the next, as long as its shift lasts.
Knows nothing of what is called.
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
    """Whether threads are kept, and those that are idle."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    idle: list[_BranchThread] = field(default_factory=list)


_keeper = _Keeper()


def _forget() -> None:
    """In a forked child: the parent's threads are not here."""
    global _keeper
    _keeper = _Keeper()


os.register_at_fork(after_in_child=_forget)


def run(work: Work, at_end: Work) -> Callable[[], object]:
    """Do `work` in another thread, and `at_end` in the same one before that ends; what waits until it is done."""
    with _keeper.lock:
        thread = _keeper.idle.pop() if _keeper.idle else None
    return (thread or _BranchThread()).give(work, at_end)


@contextmanager
def keep() -> Iterator[None]:
    """Keep threads as long as the block lasts; those that are idle have ended when it is left."""
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
    """A daemon that does one piece of work after the other until nobody keeps it."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Work, Work, threading.Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="durable-branch", daemon=True)
        self._thread.start()

    def give(self, work: Work, at_end: Work) -> Callable[[], object]:
        done = threading.Event()
        self._given.put((work, at_end, done))
        return done.wait

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
            done.set()
        if at_end is not None:
            at_end()

    def _is_kept(self) -> bool:
        with _keeper.lock:
            if _keeper.depth:
                _keeper.idle.append(self)
            return _keeper.depth > 0

    def _finish(self, at_end: Work, done: threading.Event) -> None:
        try:
            at_end()
        finally:
            done.set()
