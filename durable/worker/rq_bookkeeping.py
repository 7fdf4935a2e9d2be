"""RQ's records of a durable job, written in few round trips.

Owns the records of such a job and of its worker from the moment the worker takes the job until it is done: that the
worker is busy with it, the started jobs, the counts. RQ writes them command by command, in some thirty round trips for
each job, to support results, dependents, repetitions and callbacks, which a durable job never has. Here the same
records are one pipeline before the job and one after it. A failed job is left to RQ, as is every other job. Must not
know what the job does.
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

#: RQ 3 passes the execution of a job to its methods, and keeps a set of each worker's. RQ 2 knows of one at a time.
_IS_RQ_2: Final = not hasattr(BaseWorker, "executions_key")


def execution_args(execution: Execution | None) -> tuple[Any, ...]:
    """Return the execution as arguments for RQ's methods: none in RQ 2."""
    return () if _IS_RQ_2 else (execution,)


def is_durable_job(job: Job) -> bool:
    """Return True if the notifier has made this job, so that nothing is to be kept of its success."""
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
    """Add the commands to the pipeline that count `job` as done by `worker` and delete the job."""
    assert job.started_at is not None, "RQ notes it before it performs a job"
    assert job.ended_at is not None, "RQ notes it before it handles a success"
    worker.increment_successful_job_count(pipeline=pipeline)
    worker.increment_total_working_time(job.ended_at - job.started_at, pipeline)
    worker.cleanup_execution(job, pipeline, *execution_args(worker.execution))
    pipeline.delete(job.key, job.execution_registry.key)
