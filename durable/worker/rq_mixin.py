"""The common base of durable's two RQ worker classes.

Owns which jobs a worker runs and how it reads them, its heartbeats outside of jobs, and what it keeps of a durable job.
Must not know in which process a job runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final

from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import worker_registration
from rq.exceptions import InvalidJobOperation, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer, resolve_serializer
from rq.utils import now

from durable.conf import conf
from durable.worker import rq_bookkeeping
from durable.worker.rq_bookkeeping import execution_args, is_durable_job
from durable.worker.rq_jobs import GuardedJob, ReadsJson, guarded, problem_of, refuse

logger = logging.getLogger("durable.worker")

# Seconds that an ending worker waits until its thread has unsubscribed from RQ's commands: a round trip, and no longer,
# because the process is to end.
UNSUBSCRIBE_TIMEOUT: Final = 2.0
# Seconds between two heartbeats of a worker outside a job. RQ forgets a worker that has been silent for more than a
# minute longer than it waits for jobs.
SIGN_EVERY: Final = 15.0


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
        """Check jobs before RQ imports or decodes anything of them. `serializer` is the command's option.

        Each queue has its own serializer. A queue that RQ_QUEUES configures as JSON reads nothing else. `manage.py
        rqworker` assumes pickle for all queues by default. Where OTHER_JOBS names nothing, only JSON
        is read.
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
        self.serializer = JSONSerializer  # for what RQ reads before the queue of the job is known

    def leaving(self) -> AbstractContextManager[None]:
        """Return a block around a look for jobs: an error within may be a reason to leave RQ's loop."""
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

        RQ registers a worker once, when it starts. Without the new registration, a worker that goes on serving would be
        in no list of workers. RQ sends five heartbeats for each job; outside a pipeline, another one within seconds is
        left out.
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
        """Obey a command of RQ's. Ignore an unreadable one: an error would end the listening thread."""
        try:
            super().handle_payload(message)  # type: ignore[misc]  # RQ's worker's
        except Exception as error:  # noqa: BLE001 - anyone may publish anything here: deep JSON is a RecursionError
            logger.warning("a command to the worker is ignored: %s: %s", type(error).__name__, ascii(str(error)[:200]))

    def unsubscribe(self) -> None:
        """Stop listening to RQ's commands, and wait for that at most `UNSUBSCRIBE_TIMEOUT`.

        Some versions of redis-py, from 5.3 on, wait for themselves for ever if the listening connection is broken.
        """
        farewell = threading.Thread(target=self._unsubscribe, name="durable-farewell", daemon=True)
        farewell.start()
        farewell.join(UNSUBSCRIBE_TIMEOUT)

    def _unsubscribe(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # an unreachable Redis has no subscribers
            super().unsubscribe()  # type: ignore[misc]  # RQ's worker's

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note when the job ended. For a durable job, which is deleted at once, RQ's round trip is left out."""
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
            rq_bookkeeping.end(worker, job, together)
            together.execute()


def _stoppable(
    queue_class: type[Queue], is_stopping: Callable[[], bool], leaving: Callable[[], AbstractContextManager[None]]
) -> type[Queue]:
    """Return the queue class with a last look at `is_stopping` before it waits for a job, which raises StopRequested.

    RQ's signal handler raises StopRequested in whatever code an idle worker executes. A logging handler, for example,
    swallows every exception. Without the look, the worker would then wait for jobs for ever.
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
