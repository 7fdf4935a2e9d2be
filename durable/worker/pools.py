"""Pools: where the passes of a worker are executed.

`InlinePool` executes one pass at a time in the thread that fills it, which is a process's main thread: there the
timeout of a step can interrupt a function that never returns from a library (`durable.drivers.timeouts`), and no run is
handed from one thread to another. `ThreadPool` executes several at once, in threads with database connections of their
own. It keeps the connections of idle threads for a moment, and then as Django keeps connections between two requests
(`CONN_MAX_AGE`, health checks). Both execute what the Scheduler says. Must not know where the runs come from.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from django.db import connections

from durable.core.records import RunRecord
from durable.drivers import loop_threads, threads
from durable.execution.connections import abandon_transactions, close_stale_connections
from durable.worker.scheduler import Scheduler

logger = logging.getLogger("durable.worker")

# Idle seconds after which a thread checks its connections. The first time soon, because other processes may need them;
# then as often as a minute's resolution of CONN_MAX_AGE needs.
FIRST_CHECK: Final = 1.0
LATER_CHECKS: Final = 60.0

Work = Callable[[], object]
#: Executes the pass of a run. Returns True if its end has made runs of the same queue due.
ExecuteRun = Callable[[RunRecord], bool]
#: Is called then, with the queue, in the thread of the pass. It claims them, or has another worker do so.
MadeDue = Callable[[str], object]


class Pool(Protocol):
    """The executor of a WorkerLoop's passes: up to `size` at once.

    With `is_inline`, `fill` executes the passes itself. A pool puts something into `changes` when a run may be able to
    begin.
    """

    size: int
    is_inline: bool
    changes: SimpleQueue[str]

    def fill(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue, until: float) -> bool:
        """Begin the runs that may begin now, in the order of the Scheduler. Return True if their passes are over."""

    def end(self) -> None:
        """End the threads, after the passes that are under way."""


class InlinePool:
    """Executes the waiting runs one after the other, in the calling thread.

    No pass begins after `until` (monotonic).
    """

    size = 1
    is_inline = True

    def __init__(self) -> None:
        self.changes: SimpleQueue[str] = SimpleQueue()

    def fill(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue, until: float) -> bool:
        """Execute the waiting runs. Return True if there was one. Raises what `execute` raises."""
        has_executed = False
        while time.monotonic() < until and (turn := scheduler.next()) is not None:
            has_executed = True
            try:
                has_made_due = execute(turn.record)
            finally:
                scheduler.end(turn)
            if has_made_due:
                made_due(turn.record.queue)
        return has_executed

    def end(self) -> None:
        """Do nothing: there are no threads."""


class ThreadPool:
    """Up to `size` threads, started when they are needed."""

    is_inline = False

    def __init__(self, size: int) -> None:
        self.size = size
        self.changes: SimpleQueue[str] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[_WorkerThread] = set()
        self._free: list[_WorkerThread] = []

    def fill(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue, _until: float) -> bool:
        """Wake a thread for each run that may begin now. Return False: their passes have only begun."""
        for _ in range(scheduler.startable()):
            if not self.submit(lambda: self._execute_waiting(scheduler, execute, made_due)):
                break
        return False

    def submit(self, work: Work) -> bool:
        """Call `work` in a free thread, preferably the one that was busy last. Return False if no thread is free."""
        with self._lock:
            if self._free:
                thread = self._free.pop()
            elif len(self._threads) < self.size:
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

    def _execute_waiting(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue) -> None:
        with threads.keep(), loop_threads.keep():
            while (turn := scheduler.next()) is not None:
                record = turn.record
                was_suspect, has_made_due = bool(record.crashes), False
                try:
                    has_made_due = execute(record)
                except BaseException as error:  # it would end the thread, and no caller could act on it
                    text = "the pass of run %s raised %s; it is tried again when its lease runs out"
                    logger.exception(text, record.id, type(error).__name__, extra={"run_id": record.id})
                finally:
                    abandon_transactions()  # the next run in this thread must not inherit them
                    scheduler.end(turn)
                if was_suspect:
                    self._report()  # other runs may begin again
                if has_made_due:
                    made_due(record.queue)

    def _report(self) -> None:
        if self.changes.empty():  # otherwise a change is already reported and not yet read
            self.changes.put("changed")

    def _freed(self, thread: _WorkerThread) -> None:
        with self._lock:
            self._free.append(thread)
        self._report()

    def _gone(self, thread: _WorkerThread) -> None:
        """Note that a thread has ended, for any reason, so that another one may take its place."""
        with self._lock:
            self._threads.discard(thread)
            if thread in self._free:
                self._free.remove(thread)
        self._report()


class _WorkerThread:
    """A daemon thread that calls what is submitted to it."""

    def __init__(self, freed: Callable[[_WorkerThread], object], gone: Callable[[_WorkerThread], object]) -> None:
        self._on_freed = freed
        self._on_gone = gone
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="durable-worker-thread", daemon=True)
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
        pause, has_rested = FIRST_CHECK, False
        while True:
            try:
                work = self._given.get(timeout=pause)
            except Empty:
                close_stale_connections(all_connections=True)
                pause, has_rested = LATER_CHECKS, True
                continue
            if has_rested and work is not None:
                close_stale_connections(all_connections=True)
            return work
