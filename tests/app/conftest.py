"""Fixtures of the worker's side."""

import signal
from collections.abc import Iterator

import pytest
import redis

from durable.notifier import notify
from durable.worker import executor, leases
from durable.worker.shutdown import stop


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged seldom is logged in each test."""
    for module in (notify, executor, leases):
        monkeypatch.setattr(module._log_this, "_said", {})


@pytest.fixture
def no_outages(unlogged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell remembers no outage of another test."""
    monkeypatch.setattr(notify, "_quiet_until", {})


@pytest.fixture
def rq_redis(redis_connection: redis.Redis) -> Iterator[redis.Redis]:
    """An empty Redis for RQ's workers in this process; they install signal handlers, which end with the test."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield redis_connection
    for number, handler in before.items():
        signal.signal(number, handler)
    stop.clear()
