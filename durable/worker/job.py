"""The work of one RQ job: execute the due runs of a queue, one after the other, until none is due.

Owns the loop: claim, execute, release. In a process with a ConcurrentWorker (`durable.worker.concurrent`), that does
the job. Must not know what a pass does (`durable.execution.passes`), nor which runs are due and which worker has their
leases (the store). A job ends after a few seconds, so that a worker which serves other queues too gets to them; if more
runs may be due, the job notifies the queue before it ends. No work is lost here: on any failure the runs stay in the
database, due or leased for a while, and the sweep finds them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rq import get_current_job

from durable.conf import conf
from durable.core.records import RunRecord
from durable.drivers import branch_threads
from durable.execution.connections import abandon_inherited_connections, close_stale_connections
from durable.execution.passes import execute_pass
from durable.notifier import notify
from durable.store import Store, store_for
from durable.worker.concurrent import current
from durable.worker.executor import JOB_TIME_LIMIT, Execute, RunExecutor
from durable.worker.leases import LeaseManager
from durable.worker.shutdown import ShutdownFlag, stop

__all__ = ["QueueJob", "work"]


def work(queue: str) -> None:
    """Execute the due runs of `queue`. An unreachable database or Redis raises nothing here."""
    abandon_inherited_connections()
    close_stale_connections(all_connections=True)
    try:
        if (worker := current()) is not None:
            worker.work(queue)
            return
        with _terminated_softly(stop):
            QueueJob(queue, store=store_for(conf.DATABASE)).run()
    finally:
        close_stale_connections(all_connections=True)


class QueueJob:
    """The work of one RQ job on one queue.

    `execute` executes the pass of one run. After `seconds` no further pass begins.
    """

    def __init__(
        self,
        queue: str,
        *,
        store: Store,
        execute: Execute = execute_pass,
        stop: ShutdownFlag = stop,
        seconds: float = JOB_TIME_LIMIT,
    ) -> None:
        self.queue = queue
        self.stop = stop
        self._ends_at = time.monotonic() + seconds
        rq_worker = _rq_worker()
        self._leases = LeaseManager(store=store, stop=stop, asks=(queue, rq_worker) if rq_worker else None)
        self._executor = RunExecutor(store=store, execute=execute, supervisor=self._leases, stop=stop)

    def run(self) -> None:
        """Work until no run is due, the time is up or a stop is requested."""
        if notify.acknowledge(self.queue):  # before the first claim; see durable.notifier.notify
            self._executor.bounds.forget(self.queue)
        with self._leases, branch_threads.keep():
            try:
                exhausted = self._work()
            finally:
                self._release()
        if not exhausted:
            notify.notify(self.queue)

    def _work(self) -> bool:
        """Execute batch after batch. Return True if no more runs were due."""
        while self._goes_on():
            batch = self._executor.claim(self.queue, conf.CLAIM_BATCH, self._ends_at)
            if batch is None:
                return False
            if not batch:
                return True
            if len(batch) >= conf.CLAIM_BATCH:
                notify.notify(self.queue)  # there may be more, for other workers
            for record in batch:
                if not self._goes_on():
                    return False
                if record.crashes:
                    self._release(besides=record)
                self._executor.execute(record)
        return False

    def _goes_on(self) -> bool:
        return not self.stop.requested and time.monotonic() < self._ends_at

    def _release(self, besides: RunRecord | None = None) -> None:
        """Release the runs that were claimed and not begun.

        `besides` is a run that may have killed its worker. It is executed alone: if it kills this worker too, the other
        runs of its batch are not counted as having crashed.
        """
        self._executor.release(self._leases.pop_unstarted(besides))


def _rq_worker() -> str:
    """Return the name of the RQ worker that runs the current job, or "" outside a job."""
    job = get_current_job()
    return (job.worker_name if job is not None else None) or ""


@contextmanager
def _terminated_softly(stop: ShutdownFlag) -> Iterator[None]:
    """Turn the first SIGTERM into a request to stop, in a process that SIGTERM would kill.

    RQ's work horses are such processes. Process managers that signal a whole process group reach them. A SIGTERM
    handler that is already installed is left alone.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return

    def on_terminate(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stop.request()

    signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
