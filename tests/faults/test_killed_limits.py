"""Limits, rates and bulks while workers are killed: no more callers than allowed, and each run is done once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import redis

from durable import Handle, get_run
from durable.models import OperatorAction, RateKey, Reservation, Run, Slot
from durable.operations import Actor, acting_as, bulk
from durable.operations.bulk_decisions import Canary
from tests.e2e.workers import Workers
from tests.faults.dying import DEATHS, DIED_AT
from tests.faults.workflows import limited, mended, metered
from tests.support import http
from tests.support.processes import printed
from tests.support.waiting import eventually, kill_until_ended, wait_until_ended

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.redis,
]


TENANTS = 4
RUNS = 10  # of each tenant
KILLS = 6
BUSY = 0.05  # seconds that the service takes for a call; a killed caller is gone for longer: its lease has to end first


class Service:
    """Counts who calls it at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @contextmanager
    def called(self, what: str) -> Iterator[None]:
        with self.lock:
            self.now[what] += 1
            self.most[what] = max(self.most[what], self.now[what])
        try:
            time.sleep(BUSY)
            yield
        finally:
            with self.lock:
                self.now[what] -= 1


@contextmanager
def served(service: Service) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tenant, what = self.path.strip("/").split("/")
            with service.called(tenant if what == "first" else "all"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with http.served(Handler) as address:
        yield address


def test_a_service_is_never_called_by_more_than_its_limits_allow(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    log, service = tmp_path / "workers.log", Service()
    dice = random.Random(16)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    options = ["--concurrency", "4"]
    with served(service) as url:
        handles: list[Handle] = [
            limited.using(id=f"tenant-{tenant}-{number}").start(url, f"tenant-{tenant}")
            for number in range(RUNS)
            for tenant in range(TENANTS)
        ]
        with Workers(2, environment, log, settings="tests.faults.settings", options=options) as workers:
            kill_until_ended(workers, dice, kills=KILLS, log=log)
    assert [handle.output for handle in handles] == [["ok", "ok"]] * len(handles)
    assert service.most.keys() == {"all", *(f"tenant-{each}" for each in range(TENANTS))}
    assert 2 <= service.most.pop("all") <= 3
    assert set(service.most.values()) <= {1, 2}
    assert not Slot.objects.exists()


# -- a real worker is killed at the points between the statements of an attempt that has a rate and a slot


RUNS_WITH_A_RATE = 4


def killed_after(point: str, environment: dict[str, str], log: Path, redis_connection: redis.Redis) -> list[float]:
    """Pass some runs with workers of which one dies there; the times of the calls."""
    handles = [metered.using(id=f"run-{number}").start(point == "close_rate") for number in range(RUNS_WITH_A_RATE)]
    environment = {**environment, "FAULTS_DIE_AFTER": point}
    with Workers(2, environment, log, settings="tests.faults.settings", options=["--concurrency", "2"]):
        wait_until_ended(log)
    assert int(str(redis_connection.get(DEATHS).decode())) >= 1  # type: ignore[union-attr]  # there, and bytes
    called = [each.decode().split() for each in redis_connection.lrange("faults:metered", 0, -1)]  # type: ignore[union-attr]  # not awaitable
    assert len(called) >= RUNS_WITH_A_RATE + (point == "close_rate"), "a call is missing"
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


# -- a bulk with a canary while its workers are killed: each run is recovered once, and none before the canary is over


RUNS_OF_THE_BULK = 24
FIRST = 4
KILLS_OF_BULKS = 4


def test_a_canary_bulk_comes_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log, marker = tmp_path / "workers.log", tmp_path / "mended"
    ids = [f"run-{number:02}" for number in range(RUNS_OF_THE_BULK)]
    dice = random.Random(5)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    mended.start_many([(str(marker),)] * RUNS_OF_THE_BULK, ids=ids)
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        eventually(lambda: Run.objects.filter(pk__in=ids, state="failed").count() == RUNS_OF_THE_BULK)
        marker.touch()
        with acting_as(Actor("cli", label="ops"), reason="mended"):
            report = bulk.apply("recover", ids, canary=Canary(first=FIRST), rate=5)
        assert report.run_id is not None
        order = get_run(report.run_id)
        kill_until_ended(workers, dice, kills=KILLS_OF_BULKS, log=log)
    assert workers.kills == KILLS_OF_BULKS
    assert (order.state, order.result()["done"]) == ("completed", RUNS_OF_THE_BULK)
    assert set(Run.objects.filter(pk__in=ids).values_list("state", flat=True)) == {"completed"}
    done = OperatorAction.objects.filter(action="recover", outcome="done", bulk_id=order.id).order_by("id")
    recovered = list(done.values_list("run_id", flat=True))
    assert sorted(recovered) == ids, "each run once"
    canary, rest = recovered[:FIRST], recovered[FIRST:]
    ended = Run.objects.filter(pk__in=canary).order_by("-finished_at").values_list("finished_at", flat=True)[0]
    first = done.get(run_id=rest[0])
    assert ended is not None
    assert first.created_at >= ended - timedelta(milliseconds=1)


# -- an API with a quota; `python -m tests.tools.limited_api` does it with 1,000 runs

#: More runs at once than slots, so that they wait for both; the allowance of a minute is that of the whole trial.
TRIAL = ["--runs=60", "--tenants=4", "--rate=20/s", "--allowed=1200", "--at-once=1", "--busy=0.2", "--kills=4"]


def test_an_api_never_sees_more_than_it_allows() -> None:
    """On servers of its own. The seed is printed; the same one kills the same workers."""
    shown = printed("tests.tools.limited_api", *TRIAL)
    assert "60 runs" in shown
    assert "4 kills" in shown
    assert "never more than allowed, nothing left" in shown
