"""RQ's workers: a signal to stop is not forgotten, and a worker that Redis has forgotten makes itself known."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest
import redis
from rq import Queue
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer

from durable.inspection.workers import worker_overview
from durable.notifier import notify
from durable.worker.presence import stop
from durable.worker.rq import SimpleWorker, Worker

pytestmark = pytest.mark.redis


def test_a_worker_that_was_asked_to_stop_before_it_listened_stops(
    redis_connection: redis.Redis, signal_handlers: None
) -> None:
    worker = SimpleWorker([Queue("default", connection=redis_connection)], connection=redis_connection)
    stop.request()
    was_too_late = threading.Event()

    def end_it() -> None:
        was_too_late.set()
        os.kill(os.getpid(), signal.SIGTERM)

    watch = threading.Timer(10, end_it)
    watch.start()
    try:
        worker.work(logging_level="WARNING")
    finally:
        watch.cancel()
    assert not was_too_late.is_set(), "it went on serving in spite of the signal"


class _Signalling(logging.Handler):
    """Sends this process SIGTERM at the first record, and swallows what the signal's handler raises, as handlers do."""

    has_signalled = False
    has_swallowed = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.has_signalled:
            self.has_signalled = True
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except StopRequested:
                self.has_swallowed = True


def idle(kind: type[SimpleWorker | Worker], connection: redis.Redis) -> SimpleWorker | Worker:
    """A worker that listens to signals, as its `work` does before it waits for jobs."""
    worker = kind([Queue("default", connection=connection, serializer=JSONSerializer)], connection=connection)
    worker.register_birth()  # type: ignore[no-untyped-call]  # RQ's own
    worker._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's own
    return worker


@pytest.mark.parametrize("kind", [SimpleWorker, Worker])
def test_a_stop_that_a_logging_handler_has_swallowed_ends_the_wait_for_jobs(
    rq_redis: redis.Redis, kind: type[SimpleWorker | Worker]
) -> None:
    worker = idle(kind, rq_redis)
    signalling = _Signalling()
    logger = logging.getLogger("rq.worker")
    logger.addHandler(signalling)
    level = logger.level
    logger.setLevel("INFO")  # RQ logs its maintenance
    try:
        with pytest.raises(StopRequested):
            worker.dequeue_job_and_maintain_ttl(1, max_idle_time=1)
        assert signalling.has_swallowed
    finally:
        logger.setLevel(level)
        logger.removeHandler(signalling)


@pytest.mark.parametrize("kind", [SimpleWorker, Worker])
def test_a_stop_while_the_record_of_a_job_is_read_ends_the_wait_for_jobs(
    rq_redis: redis.Redis,
    signal_handlers: None,
    kind: type[SimpleWorker | Worker],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = idle(kind, rq_redis)
    notify.notify("default")
    monkeypatch.setattr("rq.job.Job.restore", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StopRequested):
        worker.dequeue_job_and_maintain_ttl(1, max_idle_time=1)
    assert "cannot read the record" not in caplog.text


# -- a worker that serves on after Redis was flushed has to be seen, too


@pytest.fixture
def worker(redis_connection: redis.Redis) -> Iterator[SimpleWorker]:
    """A worker that has come to life."""
    found = SimpleWorker([Queue("default", connection=redis_connection)], connection=redis_connection)
    found.register_birth()  # type: ignore[no-untyped-call]  # RQ's own
    yield found
    found.register_death()  # type: ignore[no-untyped-call]  # RQ's own


@pytest.mark.django_db
def test_a_worker_that_redis_has_forgotten_makes_itself_known(
    worker: SimpleWorker, redis_connection: redis.Redis
) -> None:
    redis_connection.flushall()
    assert worker_overview().workers == []
    worker.heartbeat()
    [seen] = worker_overview().workers
    assert (seen.name, seen.pid, list(seen.queues)) == (worker.name, worker.pid, ["default"])
    assert seen.started_at is not None


@pytest.mark.django_db
def test_a_sign_of_life_with_half_a_record_completes_it(worker: SimpleWorker, redis_connection: redis.Redis) -> None:
    redis_connection.flushall()
    redis_connection.hset(worker.key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")  # as RQ leaves it in a job
    worker.heartbeat()
    assert [each.name for each in worker_overview().workers] == [worker.name]
