"""The work of a durable RQ job, in any RQ worker.

Owns how the job finds its WorkerLoop. Durable's own `SimpleWorker` has one, which the job carries. In other workers (a
work horse, a stock RQ worker) each job has a loop of its own, which asks Redis whether RQ's worker was asked to stop:
no signal of RQ's reaches it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from redis.exceptions import RedisError
from rq import get_current_job
from rq.worker import BaseWorker

from durable.conf import conf
from durable.notifier import redis_clients
from durable.store import store_for
from durable.worker.loop import WorkerLoop
from durable.worker.pools import InlinePool
from durable.worker.rq_jobs import GuardedJob
from durable.worker.shutdown import ShutdownFlag, stop


def work(queue: str) -> None:
    """Execute the due runs of `queue`. An unreachable database or Redis raises nothing here."""
    job = get_current_job()
    if isinstance(job, GuardedJob) and job.loop is not None:
        job.loop.serve(queue)
        return
    rq_worker = job.worker_name if job is not None else None
    pulse = partial(stop_if_requested, queue, rq_worker, stop) if rq_worker else None
    with (
        _terminated_softly(stop),
        WorkerLoop(InlinePool(), store=store_for(conf.DATABASE), pulse=pulse, learns_names=True) as loop,
    ):
        loop.serve(queue)


def stop_if_requested(queue: str, rq_worker: str, stop: ShutdownFlag) -> None:
    """Request a stop if RQ has noted in the Redis of `queue` that the worker of this name is to shut down."""
    if stop.requested:
        return
    with contextlib.suppress(RedisError):  # nothing depends on the answer: the job ends by itself soon
        key = f"{BaseWorker.redis_worker_namespace_prefix}{rq_worker}"
        if redis_clients.client(queue).hget(key, "shutdown_requested_date") is not None:
            stop.request()


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
