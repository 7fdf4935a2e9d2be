"""RQ workers that know durable: they hand runs over when they are told to stop, and run its jobs and no others.

Other jobs are run if `DURABLE["OTHER_JOBS"]` names them (`durable.worker.rq_jobs`).

`SimpleWorker` is what `manage.py durable_worker` runs: jobs in the worker's own process. `Worker` is for
`manage.py rqworker`: set `RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}`, or name one of the two with
`--worker-class`. Stock RQ workers run durable's jobs as well, if they are told `--serializer
rq.serializers.JSONSerializer`; they learn of a shutdown half a second later.

Must not know what a job of durable does.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import signal
import threading
import time
from functools import partial
from types import FrameType
from typing import Any

import rq
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import worker_registration
from rq.exceptions import InvalidJobOperation, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer, resolve_serializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now
from rq.worker import WorkerStatus

from durable.conf import conf
from durable.worker import rq_bookkeeping
from durable.worker.rq_bookkeeping import execution_args, is_durable_job
from durable.worker.rq_jobs import GuardedJob, ReadsJson, guarded, problem_of, refuse
from durable.worker.shutdown import stop

logger = logging.getLogger("durable.worker")

__all__ = ["DurableWorkerMixin", "SimpleWorker", "Worker"]

UNSUBSCRIBE_TIMEOUT = 2.0  # seconds that the end of a worker waits until its listening to commands has ended
SIGN_EVERY = (
    15.0  # seconds; RQ forgets a worker that has been silent for more than a minute longer than it waits for jobs
)


class DurableWorkerMixin:
    """What both workers have in common."""

    # RQ waits up to a minute between two tries to reach Redis; due runs should not.
    max_connection_wait_time = 1.0

    queues: list[Queue]
    serializer: Any
    job_class: type[Job]
    _seen_at = -math.inf  # the monotonic time of the last sign of life that Redis has confirmed

    def guard(self, serializer: object) -> None:
        """Have jobs looked at before RQ imports or decodes anything of them; `serializer` is what the command was told.

        Each queue has its own serializer: one that is JSON for RQ_QUEUES reads nothing else. `manage.py rqworker` assumes
        pickle for all queues unless told otherwise. Where OTHER_JOBS names nothing, there is nothing else than JSON to read.
        """
        self.job_class = guarded(self.job_class)
        is_default = serializer in (None, "rq.serializers.DefaultSerializer", "pickle")
        for queue in self.queues:
            chosen: Any = queue.serializer
            if chosen is not JSONSerializer and not is_default:
                chosen = resolve_serializer(serializer)  # type: ignore[arg-type]  # RQ resolves whatever it accepts
            is_json = chosen is JSONSerializer or not conf.OTHER_JOBS
            queue.serializer = JSONSerializer if is_json else ReadsJson(chosen)
            queue.job_class = self.job_class
        self.serializer = JSONSerializer  # of what RQ reads before it is known which queue that came from

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run the job if it is one that this worker runs."""
        serializers = [each.serializer for each in self.queues if each.name == queue.name]
        if isinstance(job, GuardedJob):
            job.read_with(serializers[0] if serializers else JSONSerializer)
        if problem := problem_of(job):
            refuse(self, job, queue, problem)
        else:
            super().execute_job(job, queue)  # type: ignore[misc]  # RQ's worker's

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Give a sign of life; where Redis has forgotten the worker, flushed or restarted, make it known again.

        RQ registers a worker once, at its birth: without this one that serves on would be in no list of workers. And RQ
        gives five signs for each job; outside of a pipeline another one within seconds is left out.
        """
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)  # type: ignore[misc]  # RQ's worker's
        elif timeout is not None or time.monotonic() - self._seen_at >= SIGN_EVERY:
            worker: Any = self
            with worker.connection.pipeline(transaction=False) as together:
                self.sign(together, timeout)

    def sign(self, together: Pipeline, timeout: int | None = None) -> list[Any]:
        """Send the pipeline with a sign of life at its end, and register where Redis has forgotten us; its answers."""
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
        """Obey a command of RQ's. One that cannot be read is ignored: an error would end the thread that listens."""
        try:
            super().handle_payload(message)  # type: ignore[misc]  # RQ's worker's
        except Exception as error:  # noqa: BLE001 - anything may be published here: deep JSON is a RecursionError
            logger.warning("a command to the worker is ignored: %s: %s", type(error).__name__, ascii(str(error)[:200]))

    def unsubscribe(self) -> None:
        """Listen to RQ's commands no longer; a worker that ends waits a moment for that, and no longer.

        Some versions of redis-py, from 5.3 on, wait for themselves for ever where the listening connection is broken.
        """
        farewell = threading.Thread(target=self._unsubscribe, name="durable-farewell", daemon=True)
        farewell.start()
        farewell.join(UNSUBSCRIBE_TIMEOUT)

    def _unsubscribe(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # a Redis that is away has no subscribers
            super().unsubscribe()  # type: ignore[misc]  # RQ's worker's

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note when the job ended. RQ tells Redis as well, of a job of ours that is gone the moment after."""
        if is_durable_job(job):
            job.ended_at = now()
        else:
            super().handle_execution_ended(job, queue, heartbeat_ttl)  # type: ignore[misc]  # RQ's worker's

    def handle_job_success(
        self, job: Job, queue: Queue, started_job_registry: StartedJobRegistry, execution: Execution | None = None
    ) -> None:
        """Note the success of a job, unless Redis has forgotten the job meanwhile: then there is nothing to note."""
        if is_durable_job(job):
            self.finish_job(job)
            return
        given = (job, queue, started_job_registry, *execution_args(execution))
        try:
            super().handle_job_success(*given)  # type: ignore[misc]  # RQ's worker's
        except (InvalidJobOperation, NoSuchJobError):
            logger.warning("Redis has forgotten job %s (%s) while it ran; its work is done", job.id, job.func_name)

    def finish_job(self, job: Job) -> None:
        """A job of the bell has succeeded: delete it and count it."""
        worker: Any = self
        with worker.connection.pipeline(transaction=False) as together:
            rq_bookkeeping.end(worker, job, together)
            together.execute()


class SimpleWorker(DurableWorkerMixin, rq.SimpleWorker):
    """Runs jobs in its own process; a signal to stop evicts the pass under way."""

    _is_not_suspended = False  # whether Redis has said so since the last job
    _told_state = ""  # the state that Redis has been told last

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard(kwargs.get("serializer"))
        self._beating = threading.Lock()
        self._beats_for: Execution | None = None

    def handle_warm_shutdown_request(self) -> None:
        """Have the pass under way end at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        stop.request()

    def check_for_suspension(self, burst: bool) -> None:
        """Where RQ's loop begins: a stop that was requested before RQ listened to signals ends it here."""
        if stop.requested:
            raise StopRequested
        was_asked, self._is_not_suspended = self._is_not_suspended, False
        if not was_asked:
            super().check_for_suspension(burst)

    def set_state(self, state: str, pipeline: Pipeline | None = None) -> None:
        """Note the state, unless Redis has just been told the same."""
        if pipeline is None and state == self._told_state and time.monotonic() - self._seen_at < SIGN_EVERY:
            self._state = state
            return
        super().set_state(state, pipeline)
        self._told_state = state

    def prepare_execution(self, job: Job) -> Execution:
        """Note that the worker is busy with the job; of one of ours all that there is to note. Signs of life begin."""
        execution = rq_bookkeeping.begin(self, job) if is_durable_job(job) else super().prepare_execution(job)
        self.execution = self._beats_for = execution
        stop.beat = partial(self._beat, job, execution)
        return execution

    def _beat(self, job: Job, execution: Execution) -> None:
        """Tell RQ, from any thread, that job and worker are alive; nothing once the end of the job has begun."""
        with self._beating:
            if self._beats_for is execution:
                self.maintain_heartbeats(job, *execution_args(execution))

    def _end_beats(self) -> None:
        """Signs of life end; one that is under way is waited for, so that it writes nothing after the end of its job."""
        stop.beat = None
        with self._beating:
            self._beats_for = None

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note when the job ended, after its last sign of life."""
        self._end_beats()
        super().handle_execution_ended(job, queue, heartbeat_ttl)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """The rest of it, in RQ's telling."""
        if not is_durable_job(job):
            super().prepare_job_execution(job, remove_from_intermediate_queue)

    def finish_job(self, job: Job) -> None:
        """Delete and count the job, and ask what RQ's loop asks next, in one round trip."""
        with self.connection.pipeline(transaction=False) as together:
            rq_bookkeeping.end(self, job, together)
            # Not `set_state`: to RQ's handler of signals we are busy until the job is over, which this is a part of.
            together.hset(self.key, "state", WorkerStatus.IDLE)
            asked = len(together)
            together.exists(WORKERS_SUSPENDED)
            answers = self.sign(together)
        self._told_state = WorkerStatus.IDLE if answers[-1] else ""
        self._is_not_suspended = not answers[asked]

    def set_shutdown_requested_date(self) -> None:
        """Nothing: this runs in a signal handler on top of a user's code, where an error of Redis would surface."""

    def teardown(self) -> None:
        """Sign off. Without a Redis to do that at, at least end the thread that listens to it."""
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # RQ's own
        except RedisError:
            if self.pubsub_thread is not None:
                self.pubsub_thread.stop()
            raise

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job; from the note of its execution to its end, RQ is told that it and the worker are alive."""
        stop.reachable = True
        try:
            super().execute_job(job, queue)
        finally:
            self._end_beats()


class Worker(DurableWorkerMixin, rq.Worker):
    """Runs each job in a forked work horse; a signal to stop is passed on to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard(kwargs.get("serializer"))

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """Serve the queues. What a job of durable imports is imported before, once, and not by each horse."""
        importlib.import_module("durable.worker")
        return super().work(*args, **kwargs)

    def handle_warm_shutdown_request(self) -> None:
        """Have the horse's pass end at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        if self.horse_pid:
            with contextlib.suppress(ProcessLookupError):  # it has just finished
                os.kill(self.horse_pid, signal.SIGTERM)

    def setup_work_horse_signals(self) -> None:
        """In the horse: the first SIGTERM asks to stop, the second kills. A job that is not durable's goes on."""
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # RQ's own
        stop.clear()
        signal.signal(signal.SIGTERM, _on_terminate)


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop.request()
