"""WorkerLoop: claim due runs, schedule them, and have a pool execute them.

Owns how claims, the Scheduler and a pool fit together, for one run at a time (InlinePool) and for several (ThreadPool).
Must not know what notifies it of due queues (RQ, `durable.worker.rq`, or the parent, `durable.worker.polling`), what a
pass does (`durable.execution.passes`), nor which runs are due (the store).

A job names a queue. It ends after a few seconds, so that a worker which serves other queues too gets to them; if more
runs may be due, the job notifies the queue before it ends. With threads a job does not wait for the passes it begins:
the worker receives the next notification while they are under way, and takes no job while no thread is free. A claim
that is full notifies another worker, and a worker with many free threads then ends its job, so that a burst is spread
over idle workers. What the end of a pass makes due in the same queue, its own thread claims. No work is lost here: on
any failure the runs stay in the database, due or leased for a while, and the sweep finds them.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty
from types import TracebackType
from typing import Final, Self

from durable.conf import conf
from durable.core.names.renames import names_of_queue
from durable.core.records import RunRecord
from durable.drivers import loop_threads, threads
from durable.execution.connections import abandon_inherited_connections, close_stale_connections
from durable.execution.passes import execute_pass
from durable.notifier import notify
from durable.store import Store
from durable.worker.executor import JOB_TIME_LIMIT, Execute, RunExecutor
from durable.worker.leases import LeaseManager
from durable.worker.pools import Pool
from durable.worker.presence import Presence
from durable.worker.scheduler import Scheduler
from durable.worker.shutdown import ShutdownFlag, stop

# Seconds between two looks at the Scheduler while no thread reports a change: a run may begin because time has passed.
# Also how long a job waits for a free thread before RQ's order decides which queue gets the next one: longer than most
# passes take, and short for the runs of another queue that wait meanwhile.
TICK: Final = 0.25


class WorkerLoop:
    """Executes due runs, up to `pool.size` at once, while its `with` block lasts.

    `execute` executes the pass of one run. `pulse` is called twice a second in the thread of the LeaseManager. A
    process that serves `queues` (with `serves_all`, others too) has a row in the table of workers. With `learns_names`
    it reads before its first claim which operations migrations have renamed.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        store: Store,
        execute: Execute = execute_pass,
        stop: ShutdownFlag = stop,
        pulse: Callable[[], object] | None = None,
        queues: Sequence[str] | None = None,
        serves_all: bool = False,
        learns_names: bool = False,
    ) -> None:
        self.stop = stop
        self._pool = pool
        self._scheduler = Scheduler(pool.size, in_batches=pool.is_inline)
        presence = None
        if queues is not None:
            presence = Presence(
                queues=queues,
                slots=pool.size,
                stop=stop,
                passes=lambda: self._scheduler.ended,
                serves_all=serves_all,
            )
        self.leases = LeaseManager(store=store, stop=stop, scheduler=self._scheduler, pulse=pulse, presence=presence)
        self._claiming = threading.Lock()
        self._waits_for_room = False
        self._executor = RunExecutor(
            store=store, execute=execute, leases=self.leases, stop=stop, learns_names=learns_names
        )

    def __enter__(self) -> Self:
        self.stop.listen(self._pool.changes)
        self.leases.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release all claimed runs and wait for the passes to end, unless the block was left by KeyboardInterrupt or
        SystemExit.
        """
        try:
            if kind is None or issubclass(kind, Exception):
                self._hand_over()
        finally:
            self.stop.forget(self._pool.changes)
            self.leases.__exit__(kind, error, at)

    def serve(self, queue: str) -> None:
        """Do one job, with database connections that are checked before and after it, as those of a request are."""
        abandon_inherited_connections()
        close_stale_connections(all_connections=True)
        try:
            self.work(queue)
        finally:
            close_stale_connections(all_connections=True)

    def work(self, queue: str, seconds: float = JOB_TIME_LIMIT) -> None:
        """Begin the due runs of `queue` until none is due, `seconds` are over or a stop is requested.

        A queue that a migration has renamed has due runs under each of its names. Each has its part of the time, so
        that none waits for another. An unreachable database or Redis raises nothing here.
        """
        if notify.acknowledge(queue):  # before the first claim; see durable.notifier.notify
            for name in names_of_queue(queue):
                self._executor.bounds.forget(name)
        left: list[RunRecord] = []
        try:
            with threads.keep(), loop_threads.keep():  # from one pass to the next
                is_done = self._begin_due_of_all_names(queue, seconds)
        finally:
            if self._pool.is_inline:  # no thread would begin them
                self._scheduler.clear()
                left = self.leases.unstarted()
                self.leases.release(left)
        if not is_done and not left:
            notify.notify(queue)

    @property
    def has_room(self) -> bool:
        """Return True if a run claimed by a job could begin at once."""
        return self._scheduler.free_slots() > 0

    def wait_for_room(self, seconds: float = math.inf) -> bool:
        """Wait until a run could begin at once or a stop is requested. Return False if neither happens in time."""
        return self._await(self._scheduler.free_slots, seconds) > 0 or self.stop.requested

    def _claim_more(self, queue: str) -> None:
        """Claim the runs of `queue` that the end of a pass has made due, in the pass's thread, or have others do so.

        Such a run gets a slot that is handed on, or is the parent of a child that has ended. A notification and its job
        would cost more than most of these passes. Such runs are for another worker if no thread is free for them, or
        while this worker waits for room: a queue whose passes make others due again and again must not keep it from its
        other queues.
        """
        if self._pool.is_inline:
            if self._scheduler.startable():  # otherwise the job claims again at once
                notify.notify(queue)
            return
        batch: list[RunRecord] | None = None
        is_full = False
        is_free = not self.stop.requested and not self._waits_for_room
        if is_free and self._claiming.acquire(timeout=TICK):
            try:
                batch, is_full = self._claim(queue, -math.inf)
            finally:
                self._claiming.release()
        if batch is None or is_full:
            notify.notify(queue)
        if batch is not None and len(batch) > 1:
            self._fill()

    def _begin_due_of_all_names(self, queue: str, seconds: float) -> bool:
        """Do `_begin_due` for the queue under each of its names. Return True if no more runs were due."""
        is_done = self._begin_due(queue, time.monotonic() + seconds / len(names_of_queue(queue)))
        names = names_of_queue(queue)  # the first claim of a process reads them
        for name in names:
            if name != queue:
                is_done &= self._begin_due(name, time.monotonic() + seconds / len(names))
        return is_done

    def _begin_due(self, queue: str, until: float) -> bool:
        """Claim runs and have the pool begin them, batch after batch. Return True if no more runs were due."""
        while not self.stop.requested and time.monotonic() < until:
            if not self._await(lambda: self._scheduler.claim_limit(conf.CLAIM_BATCH), TICK):
                return False
            leaves_room = self._scheduler.free_slots() > conf.CLAIM_BATCH
            with self._claiming:
                batch, is_full = self._claim(queue, until)
            if batch is None:
                return False
            if is_full:
                notify.notify(queue)  # there may be more, for other workers
            has_executed = self._fill(until)
            if is_full and leaves_room:
                return True  # an idle worker comes first; if there is none, this one gets that notification too
            if not is_full and not has_executed:  # otherwise more runs may be due by now
                return True
        return False

    def _claim(self, queue: str, until: float) -> tuple[list[RunRecord] | None, bool]:
        """Claim due runs of `queue` for the places that are free, and schedule them.

        The caller holds `_claiming`, so that no other thread claims for the same places meanwhile. Return the batch,
        None where nothing could be claimed, and whether it is as large as asked for: then more may be due.
        """
        if not (limit := self._scheduler.claim_limit(conf.CLAIM_BATCH)):
            return None, False
        batch = self._executor.claim(queue, limit, until)
        self.leases.release(*self._scheduler.add(batch or ()))
        return batch, batch is not None and len(batch) >= limit

    def _fill(self, until: float = math.inf) -> bool:
        return self._pool.fill(self._scheduler, self._executor.execute, self._claim_more, until)

    def _await(self, count: Callable[[], int], seconds: float) -> int:
        """Return `count()` as soon as it is not 0; return 0 after `seconds` or when a stop is requested."""
        until = time.monotonic() + seconds
        try:
            while not (counted := count()) and not self.stop.requested:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._waits_for_room = True
                self._wait(min(TICK, left))
                self._fill()
            return counted
        finally:
            self._waits_for_room = False

    def _wait(self, seconds: float) -> None:
        """Wait until the pool reports a change or a stop is requested."""
        with contextlib.suppress(Empty):
            self._pool.changes.get(timeout=seconds)

    def _hand_over(self) -> None:
        self._scheduler.clear()
        self.leases.release(self.leases.unstarted())
        if not self._scheduler.is_empty and not self.stop.requested:
            self.stop.request()
        while not self._scheduler.is_empty:
            self._wait(TICK)
        self._pool.end()
        self.leases.release(self.leases.unstarted())  # what a thread has claimed meanwhile
