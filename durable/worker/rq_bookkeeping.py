"""What RQ's lists say of a job of the bell, written in few round trips.

Owns the records of such a job and of its worker from the moment it is taken until it is done: that the worker is busy
with it, the started jobs, the counts. RQ writes them command by command, in some thirty round trips for each job, ready
for results, dependents, repetitions and callbacks that a job of the bell never has; here the same records are a pipeline
before the job and one after it. A job that fails is left to RQ, as is every other one. Must not know what the job does.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from redis.client import Pipeline
from rq.exceptions import DeserializationError
from rq.executions import Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.worker import BaseWorker, WorkerStatus

from durable.notifier.enqueue import JOB

__all__ = ["begin", "end", "execution_args", "is_durable_job"]

#: RQ 3 hands on which execution of a job it speaks of, and keeps a set of those of a worker. RQ 2 knows of one at a time.
_IS_RQ_2: Final = not hasattr(BaseWorker, "executions_key")


def execution_args(execution: Execution | None) -> tuple[Any, ...]:
    """The arguments by which RQ's methods are told of the execution: none in RQ 2."""
    return () if _IS_RQ_2 else (execution,)


def is_durable_job(job: Job) -> bool:
    """Whether the bell has made this job, so that nothing is to be kept of its success."""
    has_more = job.repeats_left or job.group_id or getattr(job, "has_rate_limit", False)  # the last one from RQ 3 on
    if job.result_ttl != 0 or has_more:  # somebody's own, with the same function
        return False
    try:
        return job.func_name == JOB
    except DeserializationError:
        return False  # RQ tells of it


def begin(worker: Any, job: Job) -> Execution:
    """Note that `worker` (RQ's) is busy with `job`: one round trip. Raises RedisError."""
    ttl = worker.get_heartbeat_ttl(job)
    execution = Execution(uuid.uuid4().hex, job.id, worker.connection)
    execution.worker_name = worker.name
    intermediate = IntermediateQueue.get_intermediate_queue_key(Queue.redis_queue_namespace_prefix + job.origin)
    # not a transaction: each record is as good without the others
    with worker.connection.pipeline(transaction=False) as together:
        execution.save(ttl, together)
        job.execution_registry.add(execution, ttl, together)
        job.started_job_registry.add_execution(execution, together, ttl)
        worker.set_state(WorkerStatus.BUSY, pipeline=together)
        if _IS_RQ_2:
            worker.set_current_job_id(job.id, pipeline=together)
            worker.set_current_job_working_time(0, pipeline=together)
        else:
            together.sadd(worker.executions_key, execution.composite_key)
        worker.heartbeat(ttl, pipeline=together)
        job.prepare_for_execution(worker.name, together)
        together.lrem(intermediate, 1, job.id)
        together.execute()
    return execution


def end(worker: Any, job: Job, together: Pipeline) -> None:
    """Put into the pipeline that `worker` has done `job`, of which nothing is left then."""
    assert job.started_at is not None, "RQ notes it before it performs a job"
    assert job.ended_at is not None, "RQ notes it before it handles a success"
    worker.increment_successful_job_count(pipeline=together)
    worker.increment_total_working_time(job.ended_at - job.started_at, together)
    worker.cleanup_execution(job, together, *execution_args(worker.execution))
    together.delete(job.key, job.execution_registry.key)
