"""RQ workers for durable: signals in, heartbeats out. They run durable's jobs only.

They run other jobs if `DURABLE["OTHER_JOBS"]` names them (`durable.worker.rq_jobs`).

`manage.py durable_worker` uses `SimpleWorker`, which runs jobs in the worker's own process. `Worker` is for `manage.py
rqworker`: set `RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}`, or name one of the two classes with
`--worker-class`. Stock RQ workers run durable's jobs as well, if they are started with `--serializer
rq.serializers.JSONSerializer`; they learn of a shutdown half a second later.

Owns how a job runs in the worker's own process and in a work horse, and how each is stopped; and, in the common base of
both classes, which jobs a worker runs, how it reads them, its heartbeats outside of jobs, and RQ's records of a durable
job. Must not know what a job of durable does, and executes no runs.

When Redis is away, the worker of a `durable_worker` process leaves RQ's loop, and serves the queues that the parent
reports, as without Redis (`durable.worker.loop`). Once Redis is back, it starts a new RQ worker.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import FrameType
from typing import Any, Final

import rq
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import worker_registration
from rq.exceptions import DequeueTimeout, InvalidJobOperation, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer, resolve_serializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now
from rq.worker import WorkerStatus

from durable.conf import conf
from durable.drivers.timeouts import watch
from durable.notifier import redis_clients
from durable.store import store_for
from durable.worker import rq_jobs
from durable.worker.loop import DueQueues, InlinePool, WorkerLoop, serve_polling
from durable.worker.presence import RETRY, stop
from durable.worker.rq_jobs import GuardedJob, ReadsJson, execution_args, guarded, is_durable_job, problem_of, refuse

__all__ = ["DurableWorkerMixin", "SimpleWorker", "Worker"]

logger = logging.getLogger("durable.worker")

# Seconds that an ending worker waits for its thread to unsubscribe from RQ's commands: a round trip, and no longer.
UNSUBSCRIBE_TIMEOUT: Final = 2.0
# Seconds that the end of a job may take. RQ's connection waits for an answer longer than for a job, and a Redis that
# stands still may have been replaced meanwhile by another one, to which a new connection leads.
END_TIMEOUT: Final = 2.0
# Seconds between two heartbeats of a worker outside a job. RQ forgets a worker that has been silent for more than a
# minute longer than it waits for jobs.
SIGN_EVERY: Final = 15.0
# Seconds after which RQ forgets an idle worker that sends no heartbeat. RQ waits for jobs 15 seconds shorter than that,
# which is how late a signal is noticed that arrives just before the wait (see LONGEST_WAIT of the loop).
WORKER_TTL: Final = 30
# Seconds in which a connection must be made: otherwise a host that has vanished holds the worker for minutes.
CONNECT_TIMEOUT: Final = 2.0


class DurableWorkerMixin:
    """What both worker classes have in common."""

    # RQ waits up to a minute between two tries to reach Redis; due runs must not wait that long.
    max_connection_wait_time = 1.0

    queues: list[Queue]
    serializer: Any
    job_class: type[Job]
    queue_class: type[Queue]
    _shutdown_requested_date: datetime | None  # set by RQ's signal handler
    _seen_at = -math.inf  # the monotonic time of the last heartbeat that Redis has confirmed

    def guard(self, serializer: object) -> None:
        """Check jobs before RQ imports or decodes anything in them. `serializer` is the command's option.

        Each queue has its own serializer. A queue that RQ_QUEUES configures as JSON reads nothing else. `manage.py
        rqworker` assumes pickle for all queues by default. Where OTHER_JOBS names nothing, only JSON is read.
        """
        self.job_class = guarded(self.job_class)
        self.queue_class = _stoppable(self.queue_class, lambda: self._shutdown_requested_date is not None, self.leaving)
        is_default = serializer in (None, "rq.serializers.DefaultSerializer", "pickle")
        for queue in self.queues:
            chosen: Any = queue.serializer
            if chosen is not JSONSerializer and not is_default:
                chosen = resolve_serializer(serializer)  # type: ignore[arg-type]  # RQ resolves whatever it accepts
            is_json = chosen is JSONSerializer or not conf.OTHER_JOBS
            queue.serializer = JSONSerializer if is_json else ReadsJson(chosen)
            queue.job_class = self.job_class
        self.serializer = JSONSerializer  # used before RQ knows the queue of the job

    def leaving(self) -> AbstractContextManager[None]:
        """Return a context manager around a query for jobs: an error inside may be a reason to leave RQ's loop."""
        return contextlib.nullcontext()

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run the job if this worker may run it, otherwise refuse it."""
        serializers = [each.serializer for each in self.queues if each.name == queue.name]
        if isinstance(job, GuardedJob):
            job.read_with(serializers[0] if serializers else JSONSerializer)
        if problem := problem_of(job):
            refuse(self, job, queue, problem)
        else:
            super().execute_job(job, queue)  # type: ignore[misc]  # RQ's worker's

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Send a heartbeat. If Redis has forgotten the worker (flushed or restarted), register it again.

        RQ registers a worker once, when it starts. Without the new registration, a working worker would be missing from
        all lists. RQ sends five heartbeats for each job; outside a pipeline, a further one within seconds is skipped.
        """
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)  # type: ignore[misc]  # RQ's worker's
        elif timeout is not None or time.monotonic() - self._seen_at >= SIGN_EVERY:
            worker: Any = self
            with worker.connection.pipeline(transaction=False) as together:
                self.sign(together, timeout)

    def sign(self, together: Pipeline, timeout: int | None = None) -> list[Any]:
        """Execute the pipeline with a heartbeat at its end, and return its answers.

        Register again if Redis forgot the worker.
        """
        worker: Any = self
        self._seen_at = -math.inf
        super().heartbeat(timeout, together)  # type: ignore[misc]  # RQ's worker's
        together.hexists(worker.key, "birth")
        answers = together.execute()
        if not answers[-1]:
            with worker.connection.pipeline() as again:
                again.hset(worker.key, mapping={**worker.serialize(), "state": worker.get_state()})
                worker_registration.register(worker, again)
                again.execute()
        self._seen_at = time.monotonic()
        return answers

    def handle_payload(self, message: Any) -> None:
        """Obey a command from RQ. Ignore an unreadable one: an error would end the listening thread."""
        try:
            super().handle_payload(message)  # type: ignore[misc]  # RQ's worker's
        except Exception as error:  # noqa: BLE001 - anyone may publish anything here: deep JSON is a RecursionError
            logger.warning("a command to the worker is ignored: %s: %s", type(error).__name__, ascii(str(error)[:200]))

    def unsubscribe(self) -> None:
        """Stop listening to RQ's commands, and wait for that at most `UNSUBSCRIBE_TIMEOUT`.

        Some versions of redis-py, from 5.3 on, deadlock if the listening connection is broken.
        """
        farewell = threading.Thread(target=self._unsubscribe, name="durable-farewell", daemon=True)
        farewell.start()
        farewell.join(UNSUBSCRIBE_TIMEOUT)

    def _unsubscribe(self) -> None:
        worker: Any = self
        if worker.pubsub_thread is not None:
            worker.pubsub_thread.stop()  # first: a thread that has lost its subscription sleeps for a minute
        with contextlib.suppress(RedisError, OSError):  # an unreachable Redis has no subscribers
            super().unsubscribe()  # type: ignore[misc]  # RQ's worker's

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note when the job ended. For a durable job, which is deleted at once, RQ's round trip is skipped."""
        if is_durable_job(job):
            job.ended_at = now()
        else:
            super().handle_execution_ended(job, queue, heartbeat_ttl)  # type: ignore[misc]  # RQ's worker's

    def handle_job_success(
        self, job: Job, queue: Queue, started_job_registry: StartedJobRegistry, execution: Execution | None = None
    ) -> None:
        """Record the success of a job. A job that Redis has forgotten meanwhile needs no record."""
        if is_durable_job(job):
            self.finish_job(job)
            return
        given = (job, queue, started_job_registry, *execution_args(execution))
        try:
            super().handle_job_success(*given)  # type: ignore[misc]  # RQ's worker's
        except (InvalidJobOperation, NoSuchJobError):
            logger.warning("Redis has forgotten job %s (%s) while it ran; its work is done", job.id, job.func_name)

    def finish_job(self, job: Job) -> None:
        """Delete and count a durable job that has succeeded."""
        worker: Any = self
        with worker.connection.pipeline(transaction=False) as together:
            rq_jobs.end(worker, job, together)
            together.execute()


def _stoppable(
    queue_class: type[Queue], is_stopping: Callable[[], bool], leaving: Callable[[], AbstractContextManager[None]]
) -> type[Queue]:
    """Return the queue class, changed to check `is_stopping` once more before it waits for a job; it then raises
    StopRequested.

    RQ's signal handler raises StopRequested in whatever code an idle worker executes. A logging handler, for example,
    swallows every exception. Without the check, the worker would then wait for jobs forever.
    """

    def look() -> None:
        if is_stopping():
            raise StopRequested

    class StoppableQueue(queue_class):  # type: ignore[misc,valid-type]  # the class that RQ_QUEUES may name
        @classmethod
        def dequeue_any(cls, *args: Any, **kwargs: Any) -> Any:
            with leaving():
                return super().dequeue_any(*args, **kwargs)

        @classmethod
        def lpop(cls, *args: Any, **kwargs: Any) -> Any:
            look()
            return super().lpop(*args, **kwargs)

        @classmethod
        def lmove(cls, *args: Any, **kwargs: Any) -> Any:
            look()
            return super().lmove(*args, **kwargs)

    return StoppableQueue


class SimpleWorker(DurableWorkerMixin, rq.SimpleWorker):
    """Runs jobs in its own process. A signal to stop evicts the passes under way.

    `loop` executes the runs; if it is None, `work` makes one that executes one run at a time.
    """

    loop: WorkerLoop | None = None
    #: Whether it leaves RQ's loop to poll the database when Redis is away, and the error that made it leave.
    leaves = False
    lost: BaseException | None = None
    _is_asked_to_leave = False
    _is_not_suspended = False  # whether Redis has confirmed since the last job that workers are not suspended
    _sent_state = ""  # the state that was last written to Redis

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard(kwargs.get("serializer"))
        self._beating = threading.Lock()
        self._beats_for: tuple[Job, Execution] | None = None
        self._beaten_at = -math.inf

    def work(self, *args: Any, **kwargs: Any) -> bool:
        if self.loop is not None:
            return self._work_with(self.loop, *args, **kwargs)
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

    @property
    def _is_leaving(self) -> bool:
        return self._is_asked_to_leave or self.lost is not None

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Leave RQ's loop if Redis is away, by an exception that RQ does not log as an error."""
        if not self.leaves:
            yield
            return
        try:
            if self._is_leaving:
                raise StopRequested
            yield
        except (DequeueTimeout, StopRequested):
            raise
        except Exception as error:
            if not self._is_asked_to_leave:
                if not redis_clients.is_away(error):
                    raise
                self.lost = error
            raise StopRequested from None

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Retry quietly if the worker's own loop notices that Redis is away."""
        if self._is_leaving:
            pubsub_thread.stop()
            return
        if self.leaves and redis_clients.is_away(exc):
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
        with self.leaving() if pipeline is None else contextlib.nullcontext():
            super().heartbeat(timeout, pipeline)

    def run_maintenance_tasks(self) -> None:
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
        """Write the state to Redis, unless the same state was written just before, or the worker leaves RQ's loop."""
        is_sent = state == self._sent_state and time.monotonic() - self._seen_at < SIGN_EVERY
        if pipeline is None and (self._is_leaving or is_sent):
            self._state = state
            return
        super().set_state(state, pipeline)
        self._sent_state = state

    def prepare_execution(self, job: Job) -> Execution:
        """Record that the worker is busy with the job, and start its heartbeats.

        For a durable job, this writes all records at once.
        """
        execution = rq_jobs.begin(self, job) if is_durable_job(job) else super().prepare_execution(job)
        self.execution = execution
        self._beats_for, self._beaten_at = (job, execution), time.monotonic()
        return execution

    def beat(self) -> None:
        """Send RQ's heartbeat for a long job and its worker, from any thread, as often as RQ's forking worker does.

        Sends nothing once the end of the job has begun.
        """
        if not self._is_beat_due():
            return
        # RQ's records decide nothing. redis-py raises a ValueError where `leave` has closed the connection.
        with self._beating, contextlib.suppress(RedisError, OSError, ValueError):
            if self._beats_for is not None:
                self._beaten_at = time.monotonic()
                job, execution = self._beats_for
                self.maintain_heartbeats(job, *execution_args(execution))

    def _begin_beat(self) -> None:
        """Send heartbeats in another thread: RQ may wait for Redis longer than a lease lasts, and the caller renews
        leases.
        """
        if self._is_beat_due() and not self._beating.locked():
            threading.Thread(target=self.beat, name="durable-heartbeat", daemon=True).start()

    def _is_beat_due(self) -> bool:
        return self._beats_for is not None and time.monotonic() - self._beaten_at >= self.job_monitoring_interval

    def _end_beats(self) -> None:
        """Stop the heartbeats. Wait for one that is under way, so that it writes nothing after the end of the job."""
        with self._beating:
            self._beats_for = None

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        self._end_beats()
        super().handle_execution_ended(job, queue, heartbeat_ttl)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """Write RQ's remaining records. A durable job has none."""
        if not is_durable_job(job):
            super().prepare_job_execution(job, remove_from_intermediate_queue)

    def finish_job(self, job: Job) -> None:
        """Delete and count the job, and run the next queries of RQ's loop, in one round trip."""
        if self._is_asked_to_leave:
            return
        deadline = watch(END_TIMEOUT, self.leave) if self.leaves else None
        try:  # the work of the job is done: RQ would note a failure
            self._finish_job(job)
        except Exception as error:
            if not self._is_asked_to_leave:
                if not (self.leaves and redis_clients.is_away(error)):
                    raise
                self.lost = error
        finally:
            if deadline is not None:
                deadline.end()

    def _finish_job(self, job: Job) -> None:
        with self.connection.pipeline(transaction=False) as together:
            rq_jobs.end(self, job, together)
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
        if self._is_leaving:
            self._stop_listening()
            return
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # RQ's own
        except RedisError:
            self._stop_listening()
            raise

    def _stop_listening(self) -> None:
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()

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

    def handle_warm_shutdown_request(self) -> None:
        """End the horse's pass at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        if self.horse_pid:
            with contextlib.suppress(ProcessLookupError):  # the horse has just finished
                os.kill(self.horse_pid, signal.SIGTERM)

    def setup_work_horse_signals(self) -> None:
        """Install the horse's signal handler: the first SIGTERM requests a stop, the second kills. Other jobs
        continue.
        """
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # RQ's own
        stop.clear()
        signal.signal(signal.SIGTERM, _on_terminate)


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop.request()


def serve(loop: WorkerLoop, queues: Sequence[str], due: DueQueues, *, logging_level: str) -> None:
    """Serve the queues until a stop is requested. Redis may be unreachable at any time."""
    with contextlib.suppress(StopRequested):
        while not loop.stop.requested:
            _serve_with_redis(loop, queues, due, logging_level)
            _poll_until_back(loop, queues, due)


def _serve_with_redis(loop: WorkerLoop, queues: Sequence[str], due: DueQueues, logging_level: str) -> None:
    """Let an RQ worker serve the queues. Its loop ends by itself only if Redis fails."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker = _rq_worker(loop, queues)  # which sends its name to Redis
        due.on_report = worker.leave
        worker.work(logging_level=logging_level)
        lost = worker.lost
    except (RedisError, OSError) as error:
        lost = error
    finally:
        due.on_report = None
        for number, handler in handlers.items():  # RQ's own raise StopRequested in whatever runs
            signal.signal(number, handler)
    if lost is not None and redis_clients.is_away(lost):
        redis_clients.began(queues[0], lost)


def _poll_until_back(loop: WorkerLoop, queues: Sequence[str], due: DueQueues) -> None:
    """Serve due runs without Redis until each Redis of the queues answers, but at least for a moment."""
    is_back, has_ended = threading.Event(), threading.Event()

    def look() -> None:
        while not has_ended.wait(RETRY):
            if _answers(queues):
                is_back.set()
                due.look()
                return

    looking = threading.Thread(target=look, name="durable-redis-watch", daemon=True)
    looking.start()
    for queue in queues:  # runs of which the process was not notified meanwhile
        due.run_is_due(queue)
    try:
        serve_polling(loop, due, is_back.is_set)
    finally:
        has_ended.set()
        looking.join()


def _answers(queues: Sequence[str]) -> bool:
    for queue in redis_clients.one_queue_per_redis(queues):
        try:
            redis_clients.client(queue).ping()
        except (RedisError, OSError) as error:
            if redis_clients.is_away(error):
                redis_clients.began(queue, error)
                return False
        redis_clients.ended(queue)
    return True


def _rq_worker(loop: WorkerLoop, queues: Sequence[str]) -> SimpleWorker:
    from django_rq import get_worker

    kind: Any = SimpleWorker  # django_rq's annotation is too narrow
    worker: Any = get_worker(*queues, worker_class=kind, worker_ttl=WORKER_TTL)
    assert isinstance(worker, SimpleWorker)
    pool = worker.connection.connection_pool
    pool.connection_kwargs.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
    pool.set_retry(Retry(NoBackoff(), 1))  # polling the database is better than retrying for long
    worker.loop = loop
    worker.leaves = True
    return worker
