"""A worker in this process, without RQ: one job of a queue, or the pieces that a test drives by hand; rows."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connections
from django.utils import timezone

from durable.conf import conf
from durable.execution.passes import execute_pass
from durable.models import WorkerProcess
from durable.store import Store, store_for
from durable.worker.executor import JOB_TIME_LIMIT, Execute
from durable.worker.leases import LeaseManager
from durable.worker.loop import InlinePool, ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from durable.worker.scheduler import Scheduler


def work_off(
    queue: str = "default",
    *,
    store: Store | None = None,
    execute: Execute = execute_pass,
    stop: ShutdownFlag | None = None,
    seconds: float = JOB_TIME_LIMIT,
    pulse: Callable[[], object] | None = None,
    slots: int = 1,
) -> None:
    """Execute the due runs of the queue in this thread until none is due, as a job of a stock RQ worker does."""
    store, stop = store or store_for(conf.DATABASE), stop or ShutdownFlag()
    pool = InlinePool() if slots == 1 else ThreadPool(slots)
    with WorkerLoop(pool, store=store, execute=execute, stop=stop, pulse=pulse) as loop:
        loop.work(queue, seconds)


@contextmanager
def working_threads(let_go: Callable[[], object], seconds: float) -> Iterator[Callable[..., threading.Thread]]:
    """Yield what starts a thread that works until nothing is due, with so many slots. At the end, `let_go` and join."""
    threads: list[threading.Thread] = []

    def work(slots: int) -> None:
        try:
            work_off(seconds=seconds, slots=slots)
        finally:
            connections.close_all()

    def start(slots: int = 1) -> threading.Thread:
        threads.append(threading.Thread(target=work, args=[slots]))
        threads[-1].start()
        return threads[-1]

    yield start
    let_go()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive()


def lease_manager(store: Store, stop: ShutdownFlag | None = None) -> LeaseManager:
    """Return a LeaseManager of runs that the test claims and begins itself: none waits for a pool."""
    return LeaseManager(store=store, stop=stop or ShutdownFlag(), scheduler=Scheduler(1))


def a_worker(name: str = "host:4711:abc", **columns: Any) -> WorkerProcess:
    """The row of a worker, alive unless the columns say otherwise."""
    now = timezone.now()
    given = {"host": "host", "pid": 4711, "queues": ["default", "high"], "slots": 8, "build": "7f3a"}
    times = {"started_at": now - timedelta(hours=2, minutes=10), "last_seen_at": now, "memory": 184_000_000}
    return WorkerProcess.objects.create(name=name, **{**given, **times, **columns})
