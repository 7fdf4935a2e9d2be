"""A Redis that fails at any command of a notification: the caller gets no error, and the next sweep notifies again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError

from durable.notifier import enqueue, notify, redis_clients
from durable.notifier.enqueue import PipelinedSender

pytestmark = [pytest.mark.redis, pytest.mark.django_db]

QUEUE = "default"


class Failing:
    """Redis commands and pipelines, counted from 1; one of them fails `how`: "before" its effect or "after" it."""

    def __init__(self, number: int, how: str) -> None:
        self.number = number
        self.how = how
        self.seen: list[str] = []

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def failing(client: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(str(args[0]) if args else "pipeline")
            is_here = len(self.seen) == self.number
            if is_here and self.how == "before":
                raise RedisConnectionError("injected before")
            answer = call(client, *args, **kwargs)
            if is_here and self.how == "after":
                raise RedisConnectionError("injected after")
            return answer

        return failing


@contextmanager
def failing(number: int, how: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    fault = Failing(number, how)
    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "execute_command", fault.around(redis.Redis.execute_command))
        patch.setattr(Pipeline, "execute", fault.around(Pipeline.execute))
        patch.setattr(PipelinedSender, "_send", fault.around(PipelinedSender._send))
        yield fault


def notify_in_every_way() -> None:
    """All that happens to a notification: one, a second one, a job that acknowledges it, another one, the sweep's."""
    notify.notify(QUEUE)
    notify.notify(QUEUE)
    notify.acknowledge(QUEUE)
    notify.notify(QUEUE)
    notify.notify(QUEUE, force=True)


def waiting(connection: redis.Redis) -> int:
    jobs = redis_clients.rq_queue(QUEUE).get_job_ids()
    return sum(bool(connection.exists(f"rq:job:{job}")) for job in jobs)


def commands(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notify_in_every_way()  # RQ asks some things only once
    connection.flushdb()
    with failing(0, "", monkeypatch) as undisturbed:
        notify_in_every_way()
    connection.flushdb()
    return undisturbed.seen


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_fault_at_any_command_is_made_up_for_by_the_next_sweep(
    how: str, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = commands(redis_connection, monkeypatch)
    assert len(seen) >= 5, seen
    for number in range(1, len(seen) + 1):
        redis_connection.flushdb()
        monkeypatch.setattr(notify, "_quiet_until", {})
        with failing(number, how, monkeypatch):
            notify_in_every_way()
        notify.notify(QUEUE, force=True)
        assert waiting(redis_connection) >= 1, f"{how} {number} of {seen}: no worker will look"
        assert waiting(redis_connection) <= 3


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_fault_of_the_sweep_itself_is_made_up_for_by_the_one_after_it(
    how: str, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 8):
        redis_connection.flushdb()
        redis_connection.set(enqueue.KEY.format(QUEUE), "a job that was lost")
        with failing(number, how, monkeypatch):
            notify.notify(QUEUE, force=True)
        notify.notify(QUEUE, force=True)
        assert waiting(redis_connection) >= 1, f"{how} {number}"
