"""A worker in this process, without RQ: one job of a queue, or the pieces that a test drives by hand."""

from collections.abc import Callable

from durable.conf import conf
from durable.execution.passes import execute_pass
from durable.store import Store, store_for
from durable.worker.executor import JOB_TIME_LIMIT, Execute
from durable.worker.leases import LeaseManager
from durable.worker.loop import InlinePool, WorkerLoop
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
) -> None:
    """Execute the due runs of the queue in this thread until none is due, as a job of a stock RQ worker does."""
    store, stop = store or store_for(conf.DATABASE), stop or ShutdownFlag()
    with WorkerLoop(InlinePool(), store=store, execute=execute, stop=stop, pulse=pulse) as loop:
        loop.work(queue, seconds)


def lease_manager(store: Store, stop: ShutdownFlag | None = None) -> LeaseManager:
    """Return a LeaseManager of runs that the test claims and begins itself: none waits for a pool."""
    return LeaseManager(store=store, stop=stop or ShutdownFlag(), scheduler=Scheduler(1))
