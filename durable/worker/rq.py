"""RQ workers for durable: signals in, heartbeats out. They run durable's jobs only.

They run other jobs if `DURABLE["OTHER_JOBS"]` names them (`durable.worker.rq_jobs`).

`manage.py durable_worker` uses `SimpleWorker`, which runs jobs in the worker's own process. `Worker` is for
`manage.py rqworker`: set `RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}`, or name one of the two classes with
`--worker-class`. Stock RQ workers run durable's jobs as well, if they are started with `--serializer
rq.serializers.JSONSerializer`; they learn of a shutdown half a second later.

Owns how a job runs in the worker's own process and in a work horse, and how each is asked to stop.
`durable.worker.rq_mixin` has what both have in common. Must not know what a job of durable does.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import rq
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq.exceptions import DequeueTimeout, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.suspension import WORKERS_SUSPENDED
from rq.worker import WorkerStatus

from durable.conf import conf
from durable.jobs import set_up_django
from durable.notifier import outages
from durable.worker import rq_bookkeeping
from durable.worker.retry import RETRY
from durable.worker.rq_bookkeeping import execution_args, is_durable_job
from durable.worker.rq_jobs import GuardedJob
from durable.worker.rq_mixin import SIGN_EVERY, DurableWorkerMixin
from durable.worker.shutdown import stop

if TYPE_CHECKING:
    from durable.worker.loop import WorkerLoop

__all__ = ["DurableWorkerMixin", "SimpleWorker", "Worker"]


class SimpleWorker(DurableWorkerMixin, rq.SimpleWorker):
    """Runs jobs in its own process. A signal to stop evicts the passes under way.

    `loop` executes the runs; if it is None, `work` makes one that executes one run at a time.
    """

    loop: WorkerLoop | None = None
    #: Whether it leaves RQ's loop when Redis is away, to poll the database, and the error that made it leave.
    leaves = False
    lost: BaseException | None = None
    _is_asked_to_leave = False
    _is_not_suspended = False  # whether Redis has said since the last job that workers are not suspended
    _sent_state = ""  # the state that was last written to Redis

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard(kwargs.get("serializer"))
        self._beating = threading.Lock()
        self._beats_for: tuple[Job, Execution] | None = None
        self._beaten_at = -math.inf

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """Serve the queues."""
        if self.loop is not None:
            return self._work_with(self.loop, *args, **kwargs)
        set_up_django()
        from durable.store import store_for
        from durable.worker.loop import WorkerLoop
        from durable.worker.pools import InlinePool

        try:
            queues = self.queue_names()
            with WorkerLoop(
                InlinePool(), store=store_for(conf.DATABASE), queues=queues, learns_names=True
            ) as self.loop:
                return self._work_with(self.loop, *args, **kwargs)
        finally:
            self.loop = None

    def leave(self) -> None:
        """Leave RQ's loop, even if it waits for a Redis that has vanished. May be called from any thread."""
        self._is_asked_to_leave = True
        with contextlib.suppress(RedisError, OSError):
            self.connection.connection_pool.disconnect()

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Leave RQ's loop if Redis is away, in the way that RQ logs no error of."""
        if not self.leaves:
            yield
            return
        try:
            if self._is_asked_to_leave or self.lost is not None:
                raise StopRequested
            yield
        except (DequeueTimeout, StopRequested):
            raise
        except Exception as error:
            if not self._is_asked_to_leave:
                if not outages.is_away(error):
                    raise
                self.lost = error
            raise StopRequested from None

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Try again quietly where the worker's own loop notices that Redis is away."""
        if self._is_asked_to_leave or self.lost is not None:
            pubsub_thread.stop()
            return
        if self.leaves and outages.is_away(exc):
            time.sleep(RETRY)
            return
        super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)

    def _work_with(self, loop: WorkerLoop, *args: Any, **kwargs: Any) -> bool:
        loop.leases.pulse = self._begin_beat
        try:
            return super().work(*args, **kwargs)
        finally:
            loop.leases.pulse = None

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """Wait until a run could begin at once, then for a job. Other workers get the jobs meanwhile."""
        if self.loop is not None and not self.loop.has_room:
            with contextlib.suppress(RedisError, OSError):
                # so RQ's signal handler only notes a stop, and raises nothing in what follows
                self.set_state(WorkerStatus.BUSY)
            while not self.loop.wait_for_room(SIGN_EVERY):
                with contextlib.suppress(RedisError, OSError):  # RQ's records decide nothing
                    self.heartbeat()
            if self.loop.stop.requested:
                raise StopRequested
        with self.leaving():
            return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Send a heartbeat."""
        with self.leaving() if pipeline is None else contextlib.nullcontext():
            super().heartbeat(timeout, pipeline)

    def run_maintenance_tasks(self) -> None:
        """Do what RQ does every ten minutes."""
        with self.leaving():
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]  # RQ's own

    def handle_warm_shutdown_request(self) -> None:
        """End the pass under way at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        stop.request()

    def check_for_suspension(self, burst: bool) -> None:
        """Stop if a stop was requested before RQ listened to signals. RQ's loop begins with this call."""
        if stop.requested:
            raise StopRequested
        was_asked, self._is_not_suspended = self._is_not_suspended, False
        if not was_asked:
            with self.leaving():
                super().check_for_suspension(burst)

    def set_state(self, state: str, pipeline: Pipeline | None = None) -> None:
        """Write the state to Redis, unless the same state was written just before."""
        if pipeline is None and state == self._sent_state and time.monotonic() - self._seen_at < SIGN_EVERY:
            self._state = state
            return
        super().set_state(state, pipeline)
        self._sent_state = state

    def prepare_execution(self, job: Job) -> Execution:
        """Record that the worker is busy with the job, and start its heartbeats.

        For a durable job, this writes all records at once.
        """
        execution = rq_bookkeeping.begin(self, job) if is_durable_job(job) else super().prepare_execution(job)
        self.execution = execution
        self._beats_for, self._beaten_at = (job, execution), time.monotonic()
        return execution

    def beat(self) -> None:
        """Send RQ's heartbeat of a long job and its worker, from any thread, as often as RQ's forking worker does.

        Nothing is sent once the end of the job has begun.
        """
        if not self._is_beat_due():
            return
        with self._beating, contextlib.suppress(RedisError, OSError):  # RQ's records decide nothing
            if self._beats_for is not None:
                self._beaten_at = time.monotonic()
                job, execution = self._beats_for
                self.maintain_heartbeats(job, *execution_args(execution))

    def _begin_beat(self) -> None:
        """Beat in another thread. RQ waits for an answer of Redis for longer than a lease lasts, which the caller
        renews.
        """
        if self._is_beat_due() and not self._beating.locked():
            threading.Thread(target=self.beat, name="durable-heartbeat", daemon=True).start()

    def _is_beat_due(self) -> bool:
        return self._beats_for is not None and time.monotonic() - self._beaten_at >= self.job_monitoring_interval

    def _end_beats(self) -> None:
        """Stop the heartbeats. Wait for one that is under way, so that it writes nothing after the end of its job."""
        with self._beating:
            self._beats_for = None

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Stop the heartbeats, then note when the job ended."""
        self._end_beats()
        super().handle_execution_ended(job, queue, heartbeat_ttl)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """Write the remaining records of RQ. A durable job has none."""
        if not is_durable_job(job):
            super().prepare_job_execution(job, remove_from_intermediate_queue)

    def finish_job(self, job: Job) -> None:
        """Delete and count the job, and query what RQ's loop queries next, in one round trip."""
        if self._is_asked_to_leave:
            return
        try:  # the work of the job is done: RQ would note a failure
            self._finish_job(job)
        except Exception as error:
            if not self._is_asked_to_leave:
                if not (self.leaves and outages.is_away(error)):
                    raise
                self.lost = error

    def _finish_job(self, job: Job) -> None:
        with self.connection.pipeline(transaction=False) as together:
            rq_bookkeeping.end(self, job, together)
            # Not `set_state`: RQ's signal handler must see the worker as busy until the job is over, and this is part
            # of it.
            together.hset(self.key, "state", WorkerStatus.IDLE)
            asked = len(together)
            together.exists(WORKERS_SUSPENDED)
            answers = self.sign(together)
        self._sent_state = WorkerStatus.IDLE if answers[-1] else ""
        self._is_not_suspended = not answers[asked]

    def set_shutdown_requested_date(self) -> None:
        """Do nothing. This runs in a signal handler on top of user code, where a Redis error would surface."""

    def teardown(self) -> None:
        """Unregister the worker. If Redis is unreachable, at least end the thread that listens to it."""
        if self.lost is not None or self._is_asked_to_leave:
            if self.pubsub_thread is not None:
                self.pubsub_thread.stop()
            return
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # RQ's own
        except RedisError:
            if self.pubsub_thread is not None:
                self.pubsub_thread.stop()
            raise

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job. Heartbeats for job and worker are sent from the first record of its execution to its end."""
        if isinstance(job, GuardedJob):
            job.loop = self.loop
        try:
            with self.leaving():
                super().execute_job(job, queue)
        finally:
            self._end_beats()


class Worker(DurableWorkerMixin, rq.Worker):
    """Runs each job in a forked work horse, and passes a signal to stop on to the horse."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard(kwargs.get("serializer"))

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """Serve the queues. Import what durable's jobs need once, before the horses are forked."""
        set_up_django()
        importlib.import_module("durable.worker.rq_entry")
        return super().work(*args, **kwargs)

    def handle_warm_shutdown_request(self) -> None:
        """End the horse's pass at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        if self.horse_pid:
            with contextlib.suppress(ProcessLookupError):  # the horse has just finished
                os.kill(self.horse_pid, signal.SIGTERM)

    def setup_work_horse_signals(self) -> None:
        """Install the horse's signal handler: the first SIGTERM requests a stop, the second kills. Other jobs go on."""
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # RQ's own
        stop.clear()
        signal.signal(signal.SIGTERM, _on_terminate)


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop.request()
