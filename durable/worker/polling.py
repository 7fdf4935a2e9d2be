"""The loop of a worker process without Redis (`DURABLE["REDIS"] = False`), or while Redis is away.

Owns which queue the process serves next. The parent (`durable.worker.supervisor`) polls the database for all its
processes and writes the names of queues with due runs to each one's standard input. Runs that a pass of this process
makes due are known at once. Must not claim or execute runs: `durable.worker.loop` does that. RQ has no part in it.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Final

from durable.core import clock
from durable.notifier import wakeups
from durable.worker.loop import WorkerLoop
from durable.worker.shutdown import RETRY, ShutdownFlag, stop

logger = logging.getLogger("durable.worker")

# Moments that are remembered: about a megabyte. Beyond that, polling finds the runs.
MOST_MOMENTS: Final = 10_000
# Seconds of one wait: the system's calls take no longer ones than three centuries, and the clock may be set meanwhile.
LONGEST_WAIT: Final = 60.0


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
        """Note that a run of `queue` is due now."""
        if self._serves_all or queue in self._rank:
            with self._lock:
                self._due.add(queue)
            self._changes.put("due")

    def run_is_due_at(self, queue: str, moment: datetime) -> None:
        """Note that a run of `queue` is due at `moment`."""
        with self._lock:
            if len(self._moments) < MOST_MOMENTS:
                heapq.heappush(self._moments, (moment, queue))
        self._changes.put("due later")

    def report(self, data: bytes) -> None:
        """Read what the parent has sent: one queue name on each line. A line may arrive in parts."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.run_is_due(line.decode())
        if lines and self.on_report is not None:
            self.on_report()

    def look(self) -> None:
        """Have `next` look whether it is over."""
        self._changes.put("look")

    def next(self, is_over: Callable[[], bool] = lambda: False) -> str | None:
        """Wait until a queue has due runs, and return it. Return None once a stop is requested, or it is over."""
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

    def _take(self) -> tuple[str | None, float | None]:
        """Remove and return the most urgent queue, and else for how many seconds to wait (None: until a queue is
        reported).
        """
        now = clock.now()
        with self._lock:
            while self._moments and self._moments[0][0] <= now:
                queue = heapq.heappop(self._moments)[1]
                if self._serves_all or queue in self._rank:
                    self._due.add(queue)
            if self._due:
                first = min(self._due, key=lambda queue: (self._rank.get(queue, len(self._rank)), queue))
                self._due.discard(first)
                return first, None
            if not self._moments:
                return None, None
            return None, min(LONGEST_WAIT, max(0.0, (self._moments[0][0] - now).total_seconds()))


def serve(loop: WorkerLoop, due: DueQueues, is_over: Callable[[], bool] = lambda: False) -> None:
    """Serve each reported queue until a stop is requested, or it is over."""
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
                loop.serve(queue)
            except Exception:  # the process must survive every error; the runs are in the database
                logger.exception('serving the queue "%s" failed; the next poll reports its due runs again', queue)
                loop.stop.wait(RETRY)
    finally:
        wakeups.unlisten(due)
