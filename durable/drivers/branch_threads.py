"""Threads for branches: new ones or, within `keep`, those that earlier branches have left.

Owns when such a thread begins and ends. A branch thread has a database connection of its own, and opening one takes
longer than most branches. So a worker keeps the threads from one pass to the next, for as long as its job lasts. Must
not know the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue

from durable.drivers.kept_threads import KeptThreads

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
