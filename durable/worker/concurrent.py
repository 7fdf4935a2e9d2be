"""ConcurrentWorker: execute several runs at once in one worker process (`manage.py durable_worker --concurrency N`).

Owns how RQ's loop, the notifications and the threads fit together. RQ's worker lives in the main thread. There, a
durable job claims as many due runs as can begin at once and gives them to the threads. The job does not wait for their
passes, so the worker receives the next notification while passes are under way, as an idle worker does: for any queue
it serves, in RQ's order. While no thread is free, the worker takes no job and leaves the notifications to other
workers. A claimed run for which no thread becomes free within `MAX_WAIT` is released. One LeaseManager keeps the leases
of all queues' runs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisError
from rq.exceptions import StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.worker import WorkerStatus

from durable.conf import conf
from durable.core.records import RunRecord
from durable.drivers import branch_threads
from durable.execution.connections import abandon_transactions, close_stale_connections
from durable.execution.passes import execute_pass
from durable.notifier import notify
from durable.store import Store
from durable.worker.executor import JOB_TIME_LIMIT, Execute, RunExecutor
from durable.worker.leases import LeaseManager
from durable.worker.rq import SimpleWorker
from durable.worker.scheduler import DEFERRAL, Scheduler
from durable.worker.shutdown import ShutdownFlag, stop
from durable.worker.threads import ThreadPool

__all__ = ["ConcurrentWorker", "CrewWorker", "current"]

logger = logging.getLogger("durable.worker")

TICK: Final = 0.25  # seconds between two checks of the Scheduler while no change is reported
# seconds that a job waits for a free thread, before RQ's order decides which queue gets the next one
LINGER: Final = 0.25
BEAT: Final = 15.0  # seconds between two heartbeats for RQ while no thread is free

_at_work: ConcurrentWorker | None = None


def current() -> ConcurrentWorker | None:
    """Return the ConcurrentWorker of this process, or None if it has none."""
    return _at_work


class ConcurrentWorker:
    """Executes up to `size` runs at once while its `with` block lasts.

    `execute` executes the pass of one run.
    """

    def __init__(self, size: int, *, store: Store, execute: Execute = execute_pass, stop: ShutdownFlag = stop) -> None:
        self.stop = stop
        self._scheduler = Scheduler(size)
        self._changes: SimpleQueue[str] = SimpleQueue()
        self._threads = ThreadPool(size, on_free=self._note_change)
        self._leases = LeaseManager(store=store, stop=stop, sees_to_waiting=True)
        self._executor = RunExecutor(store=store, execute=execute, supervisor=self._leases, stop=stop)

    def __enter__(self) -> Self:
        global _at_work
        self.stop.listen(self._changes)
        self._leases.__enter__()
        _at_work = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release all claimed runs and wait for the passes to end, unless the block was left by KeyboardInterrupt or
        SystemExit.
        """
        global _at_work
        _at_work = None
        try:
            if kind is None or issubclass(kind, Exception):
                self._hand_over()
        finally:
            self.stop.forget(self._changes)
            self._leases.__exit__(kind, error, at)

    def work(self, queue: str) -> None:
        """Do one RQ job: begin the due runs of `queue` until none is due, the time is up or a stop is requested."""
        if notify.acknowledge(queue):  # before the first claim; see durable.notifier.notify
            self._executor.bounds.forget(queue)
        if not self._begin_due(queue, time.monotonic() + JOB_TIME_LIMIT):
            notify.notify(queue)

    @property
    def has_room(self) -> bool:
        """Return True if a run claimed by a job could begin at once."""
        return self._scheduler.free_slots() > 0

    def wait_for_room(self, beat: Callable[[], object]) -> None:
        """Wait until a thread is free or a stop is requested; call `beat` from time to time."""
        while not self.stop.requested and not self._await(self._scheduler.free_slots, BEAT):
            with contextlib.suppress(RedisError, OSError):  # RQ's records decide nothing
                beat()
        # this thread may have released runs, and no job is there to close its connections
        close_stale_connections(all_connections=True)

    # -- the main thread

    def _begin_due(self, queue: str, until: float) -> bool:
        """Claim runs for the free threads, batch after batch. Return True if no more runs were due."""
        while not self.stop.requested and time.monotonic() < until:
            limit = self._await(lambda: self._scheduler.claim_limit(conf.CLAIM_BATCH), LINGER)
            if not limit:
                return False
            batch = self._executor.claim(queue, limit, until)
            if batch is None:
                return False
            if len(batch) >= limit:
                notify.notify(queue)  # there may be more, for other workers
            self._release(*self._scheduler.add(batch))
            self._wake()
            if len(batch) < limit:
                return True
        return False

    def _await(self, count: Callable[[], int], seconds: float) -> int:
        """Return `count()` as soon as it is not 0; return 0 after `seconds` or when a stop is requested."""
        until = time.monotonic() + seconds
        while not (counted := count()) and not self.stop.requested:
            left = until - time.monotonic()
            if left <= 0:
                break
            with contextlib.suppress(Empty):
                self._changes.get(timeout=min(TICK, left))
            self._release_expired()
        return counted

    def _release_expired(self) -> None:
        """Release the runs that have waited too long, and wake threads for the runs that may begin."""
        self._release(*self._scheduler.pop_expired())
        self._wake()

    def _release(self, records: Sequence[RunRecord], to_put_off: Sequence[RunRecord] = ()) -> None:
        """Release `records` at once, so that other workers may claim them, and defer `to_put_off`."""
        self._executor.release(self._leases.drop(records))
        self._executor.defer(self._leases.drop(to_put_off), DEFERRAL)
        for queue in {each.queue for each in records}:
            notify.notify(queue)

    def _wake(self) -> None:
        for _ in range(self._scheduler.startable()):
            if not self._threads.submit(self._execute_scheduled):
                return

    def _note_change(self) -> None:
        if self._changes.empty():  # otherwise a change is already reported and not yet read
            self._changes.put("free")

    def _hand_over(self) -> None:
        if not self.stop.requested:
            self.stop.request()
        while not self._scheduler.is_empty:
            self._release(self._scheduler.clear())
            with contextlib.suppress(Empty):
                self._changes.get(timeout=TICK)
        self._threads.end()

    # -- a thread of the pool

    def _execute_scheduled(self) -> None:
        with branch_threads.keep():
            while not self.stop.requested and (turn := self._scheduler.next()) is not None:
                try:
                    self._execute(turn.record)
                finally:
                    self._scheduler.end(turn)
                if turn.record.crashes:
                    self._note_change()  # other runs may begin again

    def _execute(self, record: RunRecord) -> None:
        try:
            self._executor.execute(record)
        except BaseException as error:  # it would end the thread, and no caller could act on it
            text = "the pass of run %s raised %s; it is tried again when its lease runs out"
            logger.exception(text, record.id, type(error).__name__, extra={"run_id": record.id})
        finally:
            abandon_transactions()  # the next run in this thread must not inherit them


class CrewWorker(SimpleWorker):
    """RQ's worker of a process with a ConcurrentWorker: takes a job only while a thread is free for a run."""

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """Wait for a free thread, then for a job."""
        crew = current()
        if crew is not None and not crew.has_room:
            with contextlib.suppress(RedisError, OSError):
                # so RQ's signal handler only notes a stop, and raises nothing in what follows
                self.set_state(WorkerStatus.BUSY)
            crew.wait_for_room(self.heartbeat)
            if crew.stop.requested:
                raise StopRequested
        dequeued: tuple[Job, Queue] | None = super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
        return dequeued
