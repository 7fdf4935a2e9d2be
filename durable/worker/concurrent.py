"""A crew: one worker process that passes several runs at once (`manage.py durable_worker --concurrency N`).

Owns how RQ's loop, the bell and the slots fit together. RQ's worker lives in the main thread, where a job of the bell
claims as many due runs as can begin at once and gives them to the slots; it does not wait for their passes. So the
worker hears the next ring while they are under way, as an idle one does, of whichever queue it serves, in RQ's order.
While no slot is free it takes no job: the rings are for other workers then. What a slot is not free for within a
moment is handed back, as everywhere. The leases of all queues' runs are in the care of one supervisor.
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

TICK: Final = 0.25  # seconds between two looks at the line, while nobody says that it has changed
LINGER: Final = 0.25  # seconds that a job waits for a slot, before RQ's order says which queue gets the next one
BEAT: Final = 15.0  # seconds between two signs of life for RQ while no slot is free

_at_work: ConcurrentWorker | None = None


def current() -> ConcurrentWorker | None:
    """The crew of this process, if it has one."""
    return _at_work


class ConcurrentWorker:
    """Passes up to `size` runs at once, as long as the context that it is. `execute` passes one of them."""

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
        """Hand everything over, and wait until that is done; unless it is to end at once."""
        global _at_work
        _at_work = None
        try:
            if kind is None or issubclass(kind, Exception):
                self._hand_over()
        finally:
            self.stop.forget(self._changes)
            self._leases.__exit__(kind, error, at)

    def work(self, queue: str) -> None:
        """One job: begin the due runs of `queue` until none is due, the time is up or a stop is requested."""
        if notify.acknowledge(queue):  # before the first look; see durable.notifier.notify
            self._executor.bounds.forget(queue)
        if not self._begin_due(queue, time.monotonic() + JOB_TIME_LIMIT):
            notify.notify(queue)

    @property
    def has_room(self) -> bool:
        """Whether what a job finds could begin at once."""
        return self._scheduler.free_slots() > 0

    def wait_for_room(self, beat: Callable[[], object]) -> None:
        """Wait until a slot is free or a stop is requested; `beat` is called from time to time."""
        while not self.stop.requested and not self._await(self._scheduler.free_slots, BEAT):
            with contextlib.suppress(RedisError, OSError):  # RQ's records decide nothing
                beat()
        close_stale_connections(all_connections=True)  # it may have handed runs back, and this is no job

    # -- the main thread

    def _begin_due(self, queue: str, until: float) -> bool:
        """Claim for the slots that are free, again and again; whether nothing was due any more."""
        while not self.stop.requested and time.monotonic() < until:
            limit = self._await(lambda: self._scheduler.claim_limit(conf.CLAIM_BATCH), LINGER)
            if not limit:
                return False
            batch = self._executor.claim(queue, limit, until)
            if batch is None:
                return False
            if len(batch) >= limit:
                notify.notify(queue)  # there may be more, for others
            self._release(*self._scheduler.add(batch))
            self._wake()
            if len(batch) < limit:
                return True
        return False

    def _await(self, count: Callable[[], int], seconds: float) -> int:
        """What is counted, as soon as it is not 0; or 0 after so long or when a stop is requested."""
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
        """Hand back who waits for too long, and wake slots for who need not wait."""
        self._release(*self._scheduler.pop_expired())
        self._wake()

    def _release(self, records: Sequence[RunRecord], to_put_off: Sequence[RunRecord] = ()) -> None:
        """Return claimed runs: others may have them now, or, what is to be put off, in a while."""
        self._executor.release(self._leases.drop(records))
        self._executor.defer(self._leases.drop(to_put_off), DEFERRAL)
        for queue in {each.queue for each in records}:
            notify.notify(queue)

    def _wake(self) -> None:
        for _ in range(self._scheduler.startable()):
            if not self._threads.submit(self._execute_scheduled):
                return

    def _note_change(self) -> None:
        if self._changes.empty():  # else somebody has said so, and nobody has listened yet
            self._changes.put("free")

    def _hand_over(self) -> None:
        if not self.stop.requested:
            self.stop.request()
        while not self._scheduler.is_empty:
            self._release(self._scheduler.clear())
            with contextlib.suppress(Empty):
                self._changes.get(timeout=TICK)
        self._threads.end()

    # -- a slot's thread

    def _execute_scheduled(self) -> None:
        with branch_threads.keep():
            while not self.stop.requested and (turn := self._scheduler.next()) is not None:
                try:
                    self._execute(turn.record)
                finally:
                    self._scheduler.end(turn)
                if turn.record.crashes:
                    self._note_change()  # others may begin again

    def _execute(self, record: RunRecord) -> None:
        try:
            self._executor.execute(record)
        except BaseException as error:  # it would end a thread, and nobody could act on that
            text = "the pass of run %s raised %s; it is tried again when its lease runs out"
            logger.exception(text, record.id, type(error).__name__, extra={"run_id": record.id})
        finally:
            abandon_transactions()  # the slot's next run is another one's


class CrewWorker(SimpleWorker):
    """RQ's worker of a process with a crew: it takes a job when there is a slot for what that will find."""

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """Wait for a free slot, then for a job."""
        crew = current()
        if crew is not None and not crew.has_room:
            with contextlib.suppress(RedisError, OSError):
                self.set_state(WorkerStatus.BUSY)  # so a signal to stop is noted, and raises nothing amid what follows
            crew.wait_for_room(self.heartbeat)
            if crew.stop.requested:
                raise StopRequested
        dequeued: tuple[Job, Queue] | None = super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
        return dequeued
