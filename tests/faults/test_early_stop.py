"""A signal to stop that comes while a worker starts, before RQ listens to signals, is not forgotten."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import redis
from rq import Queue

from durable.worker.rq import SimpleWorker
from durable.worker.shutdown import stop

pytestmark = pytest.mark.redis


@pytest.fixture
def handlers() -> Iterator[None]:
    """RQ's worker installs its own."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    stop.clear()


def test_a_worker_that_was_told_to_stop_before_it_listened_stops(redis_connection: redis.Redis, handlers: None) -> None:
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
    assert not was_too_late.is_set(), "it served on, as if nobody had told it"
