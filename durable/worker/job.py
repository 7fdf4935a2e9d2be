"""The work of one RQ job: pass the due runs of a queue, one after the other, until none is due.

Owns the loop: look, claim, pass, hand back. In a process with a crew (`durable.worker.concurrent`) the job is the crew's. What a
pass does is `durable.execution.passes`' business; which runs are due, and who holds them, the store's. A job ends after a few
seconds, so that a worker which serves other queues too gets to them; it rings before it goes if more may be due. Work
is never lost here: whatever happens, the runs stay in the database, due or leased for a while, and the sweep finds them.
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
    """Pass the due runs of `queue`. Raises nothing that a database or a Redis which is away could cause."""
    abandon_inherited_connections()
    close_stale_connections(all_connections=True)
    try:
        if (crew := current()) is not None:
            crew.work(queue)
            return
        with _terminated_softly(stop):
            QueueJob(queue, store=store_for(conf.DATABASE)).run()
    finally:
        close_stale_connections(all_connections=True)


class QueueJob:
    """One job's work on one queue. `execute` passes one run; after `seconds` no further pass begins."""

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
        """Work until nothing is due, the time is up or a stop is requested."""
        if notify.acknowledge(self.queue):  # before the first look; see durable.notifier.notify
            self._executor.bounds.forget(self.queue)
        with self._leases, branch_threads.keep():
            try:
                exhausted = self._work()
            finally:
                self._release()
        if not exhausted:
            notify.notify(self.queue)

    def _work(self) -> bool:
        """Pass batch after batch; whether nothing was due any more."""
        while self._goes_on():
            batch = self._executor.claim(self.queue, conf.CLAIM_BATCH, self._ends_at)
            if batch is None:
                return False
            if not batch:
                return True
            if len(batch) >= conf.CLAIM_BATCH:
                notify.notify(self.queue)  # there may be more, for others
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
        """Return the runs that were claimed and not begun.

        With `besides`, a run that may have killed its worker: it is passed alone, so that the others of its batch, if it
        does so again, are not counted as having crashed too.
        """
        self._executor.release(self._leases.pop_unstarted(besides))


def _rq_worker() -> str:
    """The name of the RQ worker that runs the current job, "" outside one."""
    job = get_current_job()
    return (job.worker_name if job is not None else None) or ""


@contextmanager
def _terminated_softly(stop: ShutdownFlag) -> Iterator[None]:
    """In a process that a SIGTERM would kill: the first one requests a stop instead.

    RQ's work horses are such processes; process managers that signal a whole group reach them. A handler of somebody
    else's is left alone.
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
