"""A pool of threads that execute several passes at once, each with database connections of its own.

Owns the threads, and the connections of idle threads: they are kept for a moment, and then as Django keeps connections
between two requests (`CONN_MAX_AGE`, health checks). Must not know what is called in the threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from django.db import connections

from durable.execution.connections import close_stale_connections

__all__ = ["ThreadPool"]

logger = logging.getLogger("durable.worker")

# idle seconds after which a thread checks its connections: the first time, each further time
RESTING: Final = (1.0, 60.0)

Work = Callable[[], object]


class ThreadPool:
    """Up to `count` threads, started when they are needed. A thread calls `on_free` when it becomes free."""

    def __init__(self, count: int, on_free: Work) -> None:
        self.count = count
        self._on_free = on_free
        self._lock = threading.Lock()
        self._threads: set[_WorkerThread] = set()
        self._free: list[_WorkerThread] = []

    def submit(self, work: Work) -> bool:
        """Call `work` in a free thread, preferably the one that was busy last. Return False if no thread is free."""
        with self._lock:
            if self._free:
                thread = self._free.pop()
            elif len(self._threads) < self.count:
                thread = _WorkerThread(self._freed, self._gone)
                self._threads.add(thread)
            else:
                return False
        thread.submit(work)
        return True

    def end(self) -> None:
        """End the threads and close their connections; wait for the busy ones."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.end()

    def _freed(self, thread: _WorkerThread) -> None:
        with self._lock:
            self._free.append(thread)
        self._on_free()

    def _gone(self, thread: _WorkerThread) -> None:
        """Note that a thread has ended, for any reason, so that another one may take its place."""
        with self._lock:
            self._threads.discard(thread)
            if thread in self._free:
                self._free.remove(thread)
        self._on_free()


class _WorkerThread:
    """A daemon thread that calls what is submitted to it."""

    def __init__(self, freed: Callable[[_WorkerThread], object], gone: Callable[[_WorkerThread], object]) -> None:
        self._on_freed = freed
        self._on_gone = gone
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="durable-slot", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._given.put(work)

    def end(self) -> None:
        self._given.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._await()) is not None:
                try:
                    work()
                except BaseException:  # no caller could act on it, and the thread must survive
                    logger.exception("a thread of the pool continues after an unhandled error")
                self._on_freed(self)
        finally:
            self._on_gone(self)
            connections.close_all()  # a connection belongs to its thread

    def _await(self) -> Work | None:
        pause, later = RESTING
        has_rested = False
        while True:
            try:
                work = self._given.get(timeout=pause)
            except Empty:
                close_stale_connections(all_connections=True)
                pause, has_rested = later, True
                continue
            if has_rested and work is not None:
                close_stale_connections(all_connections=True)
            return work
