"""RQ workers that know durable: they hand runs over when they are told to stop, and read its jobs.

`SimpleWorker` is what `manage.py durable_worker` runs: jobs in the worker's own process. `Worker` is for
`manage.py rqworker`: set `RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}`, or name one of the two with
`--worker-class`. Stock RQ workers run durable's jobs as well, if they are told `--serializer
rq.serializers.JSONSerializer`; they learn of a shutdown half a second later.

Must not know what a job of durable does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
from types import FrameType
from typing import Any

import rq
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import worker_registration
from rq.exceptions import InvalidJobOperation, NoSuchJobError, StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer, Serializer, resolve_serializer

from durable.stopping import stop

logger = logging.getLogger("durable.worker")

__all__ = ["KnowsDurable", "ReadsJson", "SimpleWorker", "Worker"]


class ReadsJson:
    """A serializer that also reads JSON, whatever it writes: durable's jobs are JSON on any queue.

    `manage.py rqworker` assumes pickle unless told otherwise, even on a queue whose SERIALIZER is another one. Pickles
    are read only if `other` does.
    """

    def __init__(self, other: Serializer) -> None:
        self.other = other

    def dumps(self, obj: Any) -> bytes:
        """As the other serializer writes."""
        return self.other.dumps(obj)

    def loads(self, data: bytes) -> Any:
        """JSON if it is, else as the other serializer reads. A pickle never starts like a JSON list or object."""
        if data[:1] in (b"[", b"{"):
            return json.loads(data)
        return self.other.loads(data)


class KnowsDurable:
    """What both workers have in common."""

    # RQ waits up to a minute between two tries to reach Redis; due runs should not.
    max_connection_wait_time = 1.0

    queues: list[Queue]
    serializer: Any

    def read_json(self, serializer: object) -> None:
        """Read JSON beside what was asked for: an explicit serializer, or the one of the queues."""
        is_default = serializer in (None, "rq.serializers.DefaultSerializer", "pickle")
        configured = [each.serializer for each in self.queues]
        if is_default and configured:
            is_json = all(each is JSONSerializer for each in configured)
            serializer = JSONSerializer if is_json else resolve_serializer(None)
        chosen = resolve_serializer(serializer)  # type: ignore[arg-type]  # RQ resolves whatever it accepts
        self.serializer = chosen if chosen is JSONSerializer else ReadsJson(chosen)

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Give a sign of life; where Redis has forgotten the worker, flushed or restarted, make it known again.

        RQ registers a worker once, at its birth: without this one that serves on would be in no list of workers.
        """
        super().heartbeat(timeout, pipeline)  # type: ignore[misc]  # RQ's worker's
        worker: Any = self
        if pipeline is None and not worker.connection.hexists(worker.key, "birth"):
            with worker.connection.pipeline() as together:
                together.hset(worker.key, mapping={**worker.serialize(), "state": worker.get_state()})
                worker_registration.register(worker, together)
                together.execute()

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: StartedJobRegistry) -> None:
        """Note the success of a job, unless Redis has forgotten the job meanwhile: then there is nothing to note."""
        try:
            super().handle_job_success(job, queue, started_job_registry)  # type: ignore[misc]  # RQ's worker's
        except (InvalidJobOperation, NoSuchJobError):
            logger.warning("Redis has forgotten job %s (%s) while it ran; its work is done", job.id, job.func_name)


class SimpleWorker(KnowsDurable, rq.SimpleWorker):
    """Runs jobs in its own process; a signal to stop evicts the pass under way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.read_json(kwargs.get("serializer"))

    def handle_warm_shutdown_request(self) -> None:
        """Have the pass under way end at its next operation."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ's own
        stop.request()

    def check_for_suspension(self, burst: bool) -> None:
        """Where RQ's loop begins: a stop that was requested before RQ listened to signals ends it here."""
        if stop.requested:
            raise StopRequested
        super().check_for_suspension(burst)

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
        """Run a job; while it lasts, RQ is told that it and the worker are alive."""
        stop.reachable = True
        stop.beat = lambda: self.maintain_heartbeats(job)
        try:
            super().execute_job(job, queue)
        finally:
            stop.beat = None


class Worker(KnowsDurable, rq.Worker):
    """Runs each job in a forked work horse; a signal to stop is passed on to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.read_json(kwargs.get("serializer"))

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
