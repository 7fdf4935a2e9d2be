"""A worker serves on after Redis was flushed: it has to be seen, too."""

from collections.abc import Iterator

import pytest
import redis
from rq.queue import Queue

from durable.inspection.workers import worker_overview
from durable.worker.rq import SimpleWorker

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker(redis_connection: redis.Redis) -> Iterator[SimpleWorker]:
    """A worker that has come to life."""
    found = SimpleWorker([Queue("default", connection=redis_connection)], connection=redis_connection)
    found.register_birth()  # type: ignore[no-untyped-call]  # RQ's own
    yield found
    found.register_death()  # type: ignore[no-untyped-call]  # RQ's own


def test_a_worker_that_redis_has_forgotten_makes_itself_known(
    worker: SimpleWorker, redis_connection: redis.Redis
) -> None:
    redis_connection.flushall()
    assert worker_overview().workers == []
    worker.heartbeat()
    [seen] = worker_overview().workers
    assert (seen.name, seen.pid, list(seen.queues)) == (worker.name, worker.pid, ["default"])
    assert seen.started_at is not None


def test_a_sign_of_life_with_half_a_record_completes_it(worker: SimpleWorker, redis_connection: redis.Redis) -> None:
    redis_connection.flushall()
    redis_connection.hset(worker.key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")  # as RQ leaves it in a job
    worker.heartbeat()
    assert [each.name for each in worker_overview().workers] == [worker.name]
