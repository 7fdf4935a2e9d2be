"""A real worker is killed at the points between the statements of an attempt that has a rate and a slot."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from durable.models import RateKey, Reservation, Slot
from tests.e2e.workers import Workers
from tests.faults.dying import DEATHS, DIED_AT
from tests.faults.workflows import metered
from tests.support.waiting import wait_until_ended

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
]

RUNS = 4


def killed_after(point: str, environment: dict[str, str], log: Path, redis_connection: redis.Redis) -> list[float]:
    """Pass some runs with workers of which one dies there; the times of the calls."""
    handles = [metered.using(id=f"run-{number}").start(point == "close_rate") for number in range(RUNS)]
    environment = {**environment, "FAULTS_DIE_AFTER": point}
    with Workers(2, environment, log, settings="tests.faults.settings", options=["--concurrency", "2"]):
        wait_until_ended(log)
    assert int(str(redis_connection.get(DEATHS).decode())) >= 1  # type: ignore[union-attr]  # there, and bytes
    called = [each.decode().split() for each in redis_connection.lrange("faults:metered", 0, -1)]  # type: ignore[union-attr]  # not awaitable
    assert len(called) >= RUNS + (point == "close_rate"), "a call is missing"
    assert {run for _, run in called} == {handle.id for handle in handles}
    assert {handle.output for handle in handles} <= set(range(1, len(called) + 1))
    assert not Slot.objects.exists()
    assert not Reservation.objects.exists()
    return [float(when) for when, _ in called]


@pytest.mark.parametrize("point", ["reserve", "acquire"])
def test_a_worker_dies_between_what_an_attempt_takes_and_its_call(
    child_environment: dict[str, str], tmp_path: Path, redis_connection: redis.Redis, point: str
) -> None:
    killed_after(point, child_environment, tmp_path / "worker.log", redis_connection)


def test_a_worker_dies_when_an_attempt_has_closed_the_limit(
    child_environment: dict[str, str], tmp_path: Path, redis_connection: redis.Redis
) -> None:
    times = killed_after("close_rate", child_environment, tmp_path / "worker.log", redis_connection)
    closed_until = RateKey.objects.get(limit="faults-rate", key="").closed_until
    assert closed_until is not None
    died_at = float(str(redis_connection.get(DIED_AT).decode()))  # type: ignore[union-attr]  # there, and bytes
    within = [each for each in times if died_at < each < closed_until.timestamp() - 0.1]
    assert not within, "nobody begins while the limit is closed"
    assert max(times) > died_at
