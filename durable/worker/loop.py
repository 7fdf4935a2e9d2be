"""The loop of a worker process: claim due runs, schedule them, and have a pool execute them.

Owns how claims, the Scheduler and a pool fit together, for one run at a time (InlinePool) and for several (ThreadPool),
and, without Redis or while Redis is away, which queue the process serves next. Must not know what a pass does
(`durable.execution.passes`), nor which runs are due (the store). RQ has no part in it: `durable.worker.rq` calls
`WorkerLoop.serve`.

A job names a queue. It ends after a few seconds, so that a worker which serves other queues too gets to them; if more
runs may be due, the job notifies the queue before it ends. With threads a job does not wait for the passes it begins:
the worker receives the next notification while they are under way, and takes no job while no thread is free. A claim
that is full notifies another worker, and a worker with many free threads then ends its job, so that a burst is spread
over idle workers. Runs that the end of a pass makes due in the same queue are claimed by the pass's own thread. No work
is lost here: on any failure the runs stay in the database, due or leased for a while, and the sweep finds them.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Container, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Protocol, Self

from django.db import connections

from durable.conf import conf
from durable.core import clock
from durable.core.names.renames import names_of_queue
from durable.core.records import RunRecord
from durable.drivers import loop_threads, threads
from durable.execution.connections import abandon_inherited_connections, abandon_transactions, close_stale_connections
from durable.execution.passes import execute_pass
from durable.notifier import notify, wakeups
from durable.store import Store
from durable.worker.executor import JOB_TIME_LIMIT, Execute, RunExecutor
from durable.worker.leases import LeaseManager
from durable.worker.presence import RETRY, Presence, ShutdownFlag, stop
from durable.worker.scheduler import Scheduler

logger = logging.getLogger("durable.worker")

# Idle seconds after which a thread checks its connections. The first time soon, because other processes may need them;
# then as often as a minute's resolution of CONN_MAX_AGE needs.
FIRST_CHECK: Final = 1.0
LATER_CHECKS: Final = 60.0
# Seconds between two checks of the Scheduler while no thread reports a change: a run may begin because time has passed.
# Also how long a job waits for a free thread before RQ's order decides which queue gets the next one: longer than most
# passes take, and short for the runs of another queue that wait meanwhile.
TICK: Final = 0.25
# The most remembered moments: about a megabyte. Beyond that, polling finds the runs.
MOST_MOMENTS: Final = 10_000
# The longest wait in seconds. Python does not call the handler of a signal that arrives just before its main thread
# begins to wait, as it gets the GIL from another thread, until the wait is over: measured, one of 700 beside a busy
# thread. The clock may be set meanwhile, too.
LONGEST_WAIT: Final = 1.0
# How many queues one look is at. It takes as long as a claim that finds nothing.
SIFTED: Final = 20

Work = Callable[[], object]
#: Executes the pass of a run. Returns True if its end has made runs of the same queue due.
ExecuteRun = Callable[[RunRecord], bool]
#: Called then, with the queue, in the pass's thread. Claims these runs, or has another worker claim them.
MadeDue = Callable[[str], object]


class Pool(Protocol):
    """The executor of a WorkerLoop's passes: up to `size` at once.

    With `is_inline`, `fill` executes the passes itself. A pool puts an item into `changes` when a run may be able to
    begin.
    """

    size: int
    is_inline: bool
    changes: SimpleQueue[str]

    def fill(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue, until: float) -> bool:
        """Begin the runs that may begin now, in the Scheduler's order. Return True if their passes are already over."""

    def end(self) -> None:
        """End the threads, after the passes that are under way."""


class InlinePool:
    """Executes the waiting runs one after the other, in the thread that fills it: a process's main thread.

    There the timeout of a step can interrupt a function that never returns from a library (`durable.drivers.timeouts`),
    and no run is handed from one thread to another. No pass begins after `until` (monotonic).
    """

    size = 1
    is_inline = True

    def __init__(self) -> None:
        self.changes: SimpleQueue[str] = SimpleQueue()

    def fill(self, scheduler: Scheduler, execute: ExecuteRun, made_due: MadeDue, until: float) -> bool:
        """Execute the waiting runs. Return True if there were any. Raises what `execute` raises."""
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
    """Up to `size` threads, started on demand, with database connections of their own.

    The connections of idle threads are kept for a moment, and then as Django keeps connections between two requests
    (`CONN_MAX_AGE`, health checks).
    """

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
                except BaseException as error:  # it would end the thread, and no caller could handle it
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
        """Record that a thread has ended, for any reason, so that another one may replace it."""
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
                except BaseException:  # no caller could handle it, and the thread must survive
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


class WorkerLoop:
    """Executes due runs, up to `pool.size` at once, while its `with` block lasts.

    `execute` executes the pass of one run. `pulse` is called twice a second in the thread of the LeaseManager. A
    process that serves `queues` (with `serves_all`, others too) has a row in the table of workers. With `learns_names`
    it reads renamed operations before its first claim.
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
        self._claimed = 0
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

    def serve(self, queue: str) -> bool:
        """Do one job, as `work`. Database connections are checked before and after it, as around a request."""
        abandon_inherited_connections()
        close_stale_connections(all_connections=True)
        try:
            return self.work(queue)
        finally:
            close_stale_connections(all_connections=True)

    def work(self, queue: str, seconds: float = JOB_TIME_LIMIT) -> bool:
        """Begin the due runs of `queue` until none is due, `seconds` are over or a stop is requested.

        Return False if nothing was due. A renamed queue has due runs under each of its names. Each name gets its part
        of the time, so that none waits for another. An unreachable database or Redis raises nothing here.
        """
        claimed = self._claimed
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
        return not is_done or self._claimed > claimed

    def with_due_runs(self, queues: Sequence[str]) -> set[str]:
        """Return which of the queues have due runs, by one look for all of them and their other names."""
        queue_of = {name: queue for queue in queues for name in names_of_queue(queue)}
        return {queue_of[name] for name in self._executor.store.due_queues(clock.now(), queues=list(queue_of))}

    @property
    def has_room(self) -> bool:
        """Return True if a run claimed by a job could begin at once."""
        return self._scheduler.free_slots() > 0

    def wait_for_room(self, seconds: float = math.inf) -> bool:
        """Wait until a run could begin at once or a stop is requested. Return False if neither happens in time."""
        return self._await(self._scheduler.free_slots, seconds) > 0 or self.stop.requested

    def _claim_more(self, queue: str) -> None:
        """Claim the runs of `queue` that the end of a pass has made due, in the pass's thread, or notify other workers.

        Such a run gets a slot that is handed on, or is the parent of an ended child. A notification and its job would
        cost more than most of these passes. Another worker gets these runs if no thread is free, or while this worker
        waits for room: a queue whose passes keep making runs due must not keep the worker from its other queues.
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
        """Call `_begin_due` for the queue under each of its names. Return True if no more runs were due."""
        is_done = self._begin_due(queue, time.monotonic() + seconds / len(names_of_queue(queue)))
        names = names_of_queue(queue)  # the first claim of a process reads them
        for name in names:
            if name != queue:
                is_done &= self._begin_due(name, time.monotonic() + seconds / len(names))
        return is_done

    def _begin_due(self, queue: str, until: float) -> bool:
        """Claim runs and have the pool begin them, batch after batch. Return True if no more runs were due.

        A full batch notifies other workers. If none of them has come by the time that a batch is not full, the
        notification is taken back: its job would find nothing, and with hundreds of queues there would be one in each.
        Without Redis every worker has heard of what the first batch is from, and only this one is notified.
        """
        has_notified = False
        tell = notify.notify_of_found
        while not self.stop.requested and time.monotonic() < until:
            if not self._await(lambda: self._scheduler.claim_limit(conf.CLAIM_BATCH), TICK):
                return False
            leaves_room = self._scheduler.free_slots() > conf.CLAIM_BATCH
            with self._claiming:
                batch, is_full = self._claim(queue, until)
            if batch is None:
                return False
            if is_full:
                tell(queue)  # there may be more
                has_notified = True
            tell = notify.notify  # passes make runs due of which nobody has heard
            has_executed = self._fill(until)
            if is_full and leaves_room:
                return True  # an idle worker comes first; if there is none, this one gets that notification too
            must_claim = is_full or has_executed  # more runs may be due by now
            if has_notified and not is_full:
                has_notified = False
                must_claim |= notify.take_back(queue)
            if not must_claim:
                return True
        return False

    def _claim(self, queue: str, until: float) -> tuple[list[RunRecord] | None, bool]:
        """Claim due runs of `queue` for the free places, and schedule them.

        The caller holds `_claiming`, so that no other thread claims for the same places. Return the batch (None if
        nothing could be claimed), and whether it is as large as asked for, so that more runs may be due.
        """
        if not (limit := self._scheduler.claim_limit(conf.CLAIM_BATCH)):
            return None, False
        batch = self._executor.claim(queue, limit, until)
        self._claimed += len(batch or ())
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
        self.leases.release(self.leases.unstarted())  # runs that a thread has claimed meanwhile


class DueQueues:
    """The queues that were reported to have due runs, the most urgent first. A `wakeups.Listener`.

    `queues` are the queues to serve, in the order of their urgency. With `serves_all`, any other queue comes after
    them.
    """

    def __init__(self, queues: Sequence[str], *, serves_all: bool, stop: ShutdownFlag = stop) -> None:
        self._rank = {queue: number for number, queue in enumerate(queues)}
        self._serves_all = serves_all
        self._stop = stop
        self._lock = threading.Lock()
        self._due: set[str] = set()
        self._moments: list[tuple[datetime, str]] = []  # a heap
        self._unread = b""
        #: Called with each report of the parent, in the thread that reads it.
        self.on_report: Callable[[], object] | None = None
        self._changes: SimpleQueue[str] = SimpleQueue()  # a signal handler puts into it, so it takes no lock

    def run_is_due(self, queue: str) -> None:
        if self._serves_all or queue in self._rank:
            with self._lock:
                self._due.add(queue)
            self._changes.put("due")

    def run_is_due_at(self, queue: str, moment: datetime) -> None:
        with self._lock:
            if len(self._moments) < MOST_MOMENTS:
                heapq.heappush(self._moments, (moment, queue))
        self._changes.put("due later")

    def report(self, data: bytes) -> None:
        """Read the parent's reports: one queue name on each line. A line may arrive in parts."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.run_is_due(line.decode())
        if lines and self.on_report is not None:
            self.on_report()

    def sift(self, with_due_runs: Callable[[Sequence[str]], Container[str]]) -> None:
        """Keep of the most urgent queues only those that `with_due_runs` returns. Raises what it raises.

        Every worker hears of a queue, and the first ones take its runs. So a worker that comes too late for a queue
        looks at the next ones with one statement, instead of trying to claim in each.
        """
        with self._lock:
            first = heapq.nsmallest(SIFTED, self._due, key=self._urgency)
            if len(first) < 2:
                return
            self._due.difference_update(first)  # before the look: what is reported from now on stays
        found: Container[str] = first
        try:
            found = with_due_runs(first)
        finally:
            with self._lock:
                self._due.update(each for each in first if each in found)

    def look(self) -> None:
        """Let `next` check whether it should end."""
        self._changes.put("look")

    def next(self, is_over: Callable[[], bool] = lambda: False) -> str | None:
        """Wait until a queue has due runs, and return it. Return None once a stop is requested or `is_over`."""
        self._stop.listen(self._changes)
        try:
            while not self._stop.requested and not is_over():
                queue, wait = self._take()
                if queue is not None:
                    return queue
                try:
                    self._changes.get(timeout=wait)
                except Empty:
                    continue
        finally:
            self._stop.forget(self._changes)
        return None

    def _urgency(self, queue: str) -> tuple[int, str]:
        return self._rank.get(queue, len(self._rank)), queue

    def _take(self) -> tuple[str | None, float]:
        """Remove and return the most urgent queue, or return for how many seconds to wait."""
        now = clock.now()
        with self._lock:
            while self._moments and self._moments[0][0] <= now:
                queue = heapq.heappop(self._moments)[1]
                if self._serves_all or queue in self._rank:
                    self._due.add(queue)
            if self._due:
                first = min(self._due, key=self._urgency)
                self._due.discard(first)
                return first, 0.0
            if not self._moments:
                return None, LONGEST_WAIT
            return None, min(LONGEST_WAIT, max(0.0, (self._moments[0][0] - now).total_seconds()))


def serve_polling(loop: WorkerLoop, due: DueQueues, is_over: Callable[[], bool] = lambda: False) -> None:
    """Serve each reported queue until a stop is requested or `is_over`."""
    wakeups.listen(due)
    try:
        while not loop.stop.requested and not is_over():
            if not loop.has_room:
                loop.wait_for_room(RETRY)
                continue
            queue = due.next(is_over)
            if queue is None:
                return
            try:
                if not loop.serve(queue):
                    due.sift(loop.with_due_runs)
            except Exception:  # the process must survive every error; the runs are in the database
                logger.exception('serving the queue "%s" failed; the next poll reports its due runs again', queue)
                loop.stop.wait(RETRY)
    finally:
        wakeups.unlisten(due)
