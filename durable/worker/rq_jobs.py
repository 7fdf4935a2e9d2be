"""The RQ jobs that durable's workers run: durable's own, and those that `DURABLE["OTHER_JOBS"]` names.

RQ imports and calls any function name that a job in Redis carries, with any serializer. Here a job is checked before RQ
imports anything for it: the function, the callbacks, and data that only pickle could read. Owns that decision, the
handling of refused jobs, RQ's records of a durable job, and how the job finds its WorkerLoop.

RQ writes its records command by command, in some thirty round trips for each job, to support results, dependents,
repetitions and callbacks, which a durable job never has. Here the same records are one pipeline before the job and one
after it. A failed job is left to RQ, as is every other job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import get_current_job
from rq.exceptions import DeserializationError, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.serializers import JSONSerializer, Serializer
from rq.utils import import_attribute
from rq.worker import BaseWorker, WorkerStatus

from durable.conf import conf
from durable.notifier import redis_clients
from durable.notifier.enqueue import JOB
from durable.store import store_for
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag, stop

logger = logging.getLogger("durable.worker")

_SHOWN = 200  # most characters of a name that are logged


class RefusedJobError(Exception):
    """Raised for a job that durable's workers do not run."""


class ReadsJson:
    """A serializer that also reads JSON, in addition to what it writes: durable's jobs are JSON on any queue."""

    def __init__(self, other: Serializer) -> None:
        self.other = other

    def dumps(self, obj: Any) -> bytes:
        """Serialize with the other serializer."""
        return self.other.dumps(obj)

    def loads(self, data: bytes) -> Any:
        """Decode JSON if `data` is JSON, otherwise use the other serializer.

        A pickle never starts like a JSON list or object.
        """
        if data[:1] in (b"[", b"{"):
            return json.loads(data)
        return self.other.loads(data)


class GuardedJob(Job):
    """An RQ job that imports nothing and reads no pickle before it is admitted."""

    loop: WorkerLoop | None = None  # of the worker that runs the job

    def restore(self, raw_data: Any) -> Any:
        """Read the job's record, decoding only JSON. Raises NoSuchJobError for a record that RQ cannot read."""
        chosen, self.serializer = self.serializer, JSONSerializer
        try:
            super().restore(raw_data)
        except (NoSuchJobError, StopRequested):  # the latter from RQ's signal handler, which may interrupt anything
            raise
        except Exception as error:
            logger.warning("RQ cannot read the record of job %s, which is dropped: %s", ascii(self.id), _shown(error))
            raise NoSuchJobError(f"unreadable record of job {self.id}") from error
        finally:
            self.serializer = chosen

    def read_with(self, serializer: Any) -> None:
        """Decode the rest with the serializer of the queue that the job came from."""
        self.serializer = serializer
        if serializer is not JSONSerializer and set(self.meta) == {"unserialized"}:
            self.get_meta()

    @property
    def func(self) -> Any:
        """The function. Raises RefusedJobError unless the job may run."""
        if problem := problem_of(self):
            raise RefusedJobError(problem)
        return super().func

    @property
    def success_callback(self) -> Any:
        return None if problem_of(self) else super().success_callback

    @property
    def failure_callback(self) -> Any:
        return None if problem_of(self) else super().failure_callback

    @property
    def stopped_callback(self) -> Any:
        return None if problem_of(self) else super().stopped_callback

    def send_webhooks(self, *args: Any, **kwargs: Any) -> None:
        """Call the webhooks, unless the job may not run."""
        if not problem_of(self):
            super().send_webhooks(*args, **kwargs)


def guarded(job_class: type[Job]) -> type[Job]:
    """Return the job class with the checks of GuardedJob."""
    if issubclass(job_class, GuardedJob):
        return job_class
    return GuardedJob if job_class is Job else type(job_class.__name__, (GuardedJob, job_class), {})


def problem_of(job: Job) -> str:
    """Return why the job must not run, or "" if it may. Imports nothing except what OTHER_JOBS names."""
    try:
        name, instance, args, kwargs = job.func_name, job.instance, job.args, job.kwargs
    except DeserializationError:
        return "its data is not JSON that RQ has written"
    if not isinstance(name, str):
        return "its function is not named by a text"
    callbacks = [
        each for each in (job._success_callback_name, job._failure_callback_name, job._stopped_callback_name) if each
    ]
    if name == JOB and instance is None:
        if not _is_our_call(args, kwargs):
            return f"{JOB} takes one queue of RQ_QUEUES and nothing else"
        if getattr(job, "webhooks", None):  # from RQ 3 on
            return "a job of durable's has no webhooks"
    else:
        callbacks = [_method_of(instance, name) if instance is not None else name, *callbacks]
    refused = [each for each in callbacks if not _is_allowed(each)]
    return f'DURABLE["OTHER_JOBS"] does not name {", ".join(map(_shown, refused))}' if refused else ""


def _is_our_call(args: Any, kwargs: Any) -> bool:
    is_one = isinstance(args, list | tuple) and len(args) == 1 and not kwargs
    return is_one and isinstance(args[0], str) and args[0] in redis_clients.queue_names()


def _method_of(instance: Any, name: str) -> str:
    """Return the dotted name of a method. An instance decoded from JSON is plain data with builtin methods only."""
    kind = type(instance)
    return f"{kind.__module__}.{kind.__qualname__}.{name}"


def _is_allowed(name: str) -> bool:
    """Return True if OTHER_JOBS names this function, or a module or package that it is defined in."""
    entries = [each for each in conf.OTHER_JOBS if isinstance(each, str) and each.strip(".")]
    if name in entries:
        return True
    prefixes = tuple(each for each in entries if each.endswith("."))
    if not name.startswith(prefixes):
        return False
    # What a module has imported is reached through its name as well: `shop.jobs.os.system`.
    try:
        home = getattr(import_attribute(name), "__module__", None)
    except (ValueError, AttributeError):
        return False
    return isinstance(home, str) and f"{home}.".startswith(prefixes)


def refuse(worker: Any, job: Job, queue: Queue, problem: str) -> None:
    """Make RQ list the job as failed, and log why. Nothing in the job runs, and it is not tried again."""
    text = (
        f"refused job {job.id!a} of the queue \"{queue.name}\": {problem}. Durable's workers run durable's jobs; to run others "
        'too, name their functions or modules in DURABLE["OTHER_JOBS"]. If your project has not enqueued it, '
        "another program can write to your Redis"
    )
    logger.error(text)
    try:
        with worker.connection.pipeline(transaction=False) as together:
            job.set_status(JobStatus.FAILED, pipeline=together)
            queue.failed_job_registry.add(job, ttl=job.failure_ttl, exc_string=text, pipeline=together)
            together.lrem(IntermediateQueue.get_intermediate_queue_key(queue.key), 1, job.id)
            worker.increment_failed_job_count(together)
            together.execute()
    except Exception:  # what matters is that the job was taken from its queue; the worker must survive
        logger.exception("a refused job is not listed as failed")


def _shown(text: object) -> str:
    return ascii(str(text)[:_SHOWN])


#: RQ 3 passes the execution of a job to its methods, and keeps a set of each worker's. RQ 2 knows of one at a time.
_IS_RQ_2: Final = not hasattr(BaseWorker, "executions_key")


def execution_args(execution: Execution | None) -> tuple[Any, ...]:
    """Return the execution as arguments for RQ's methods: none in RQ 2."""
    return () if _IS_RQ_2 else (execution,)


def is_durable_job(job: Job) -> bool:
    """Return True if the notifier created this job, so that no record of its success is kept."""
    has_more = job.repeats_left or job.group_id or getattr(job, "has_rate_limit", False)  # the last one from RQ 3 on
    if job.result_ttl != 0 or has_more:  # another user's own job with the same function
        return False
    try:
        return job.func_name == JOB
    except DeserializationError:
        return False  # RQ reports it


def begin(worker: Any, job: Job) -> Execution:
    """Record in one round trip that `worker` (RQ's) is busy with `job`. Raises RedisError."""
    ttl = worker.get_heartbeat_ttl(job)
    execution = Execution(uuid.uuid4().hex, job.id, worker.connection)
    execution.worker_name = worker.name
    intermediate = IntermediateQueue.get_intermediate_queue_key(Queue.redis_queue_namespace_prefix + job.origin)
    # not a transaction: each record is valid without the others
    with worker.connection.pipeline(transaction=False) as pipeline:
        execution.save(ttl, pipeline)
        job.execution_registry.add(execution, ttl, pipeline)
        job.started_job_registry.add_execution(execution, pipeline, ttl)
        worker.set_state(WorkerStatus.BUSY, pipeline=pipeline)
        if _IS_RQ_2:
            worker.set_current_job_id(job.id, pipeline=pipeline)
            worker.set_current_job_working_time(0, pipeline=pipeline)
        else:
            pipeline.sadd(worker.executions_key, execution.composite_key)
        worker.heartbeat(ttl, pipeline=pipeline)
        job.prepare_for_execution(worker.name, pipeline)
        pipeline.lrem(intermediate, 1, job.id)
        pipeline.execute()
    return execution


def end(worker: Any, job: Job, pipeline: Pipeline) -> None:
    """Add commands to the pipeline that count `job` as done by `worker` and delete it."""
    assert job.started_at is not None, "RQ notes it before it performs a job"
    assert job.ended_at is not None, "RQ notes it before it handles a success"
    worker.increment_successful_job_count(pipeline=pipeline)
    worker.increment_total_working_time(job.ended_at - job.started_at, pipeline)
    worker.cleanup_execution(job, pipeline, *execution_args(worker.execution))
    pipeline.delete(job.key, job.execution_registry.key)


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
    if (chunks := sys.modules.get("durable.notifier.chunks")) is not None:
        chunks.flush()  # RQ ends its work horses at once


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
