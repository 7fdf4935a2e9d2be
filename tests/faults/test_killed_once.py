"""Charges under kills: the bank's own ledger says that none was made twice, lost, or paid back without having been.

`FAULTS_CHARGES=2000 FAULTS_KILLS=40` makes a storm of it, `FAULTS_HELD=600 FAULTS_KILLS=40` one of held steps.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections

from durable import get_run
from durable.errors import EntryNotFoundError, InvalidTransitionError, StaleRunError
from durable.models import Failure, OperatorAction, Run
from durable.operations.audit import Actor, acting_as, revision
from durable.store import store_for
from tests.e2e.workers import Workers
from tests.faults.workflows import held_paying, paying
from tests.support.waiting import eventually, wait_until_ended

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

CHARGES = int(os.environ.get("FAULTS_CHARGES", "120"))
KILLS = int(os.environ.get("FAULTS_KILLS", "6"))
SEED = 20260301


def test_no_charge_is_made_twice_or_lost_under_kills(
    child_environment: dict[str, str], redis_connection: redis.Redis, tmp_path: Path
) -> None:
    """Workers are killed from outside at random moments, and inside of the call, before and after the charge."""
    chance, log = random.Random(SEED), tmp_path / "workers.log"
    paid = range(0, CHARGES, 3)
    runs = paying.start_many([(order, order % 10 == 0, order not in paid) for order in range(CHARGES)])
    environment = {**child_environment, "E2E_MAX_CRASHES": "1000"}
    with Workers(3, environment, log, settings="tests.faults.settings") as workers:
        for kill in range(KILLS):
            eventually(lambda kill=kill: ended() >= CHARGES * kill // (KILLS + 1), log=log)  # type: ignore[misc]  # in time
            workers.kill_one(chance)
        wait_until_ended(log)
    charged: dict[bytes, bytes] = redis_connection.hgetall("outside:charged")  # type: ignore[assignment]  # it is no pipeline
    assert len(charged) == CHARGES
    assert set(charged.values()) == {b"1"}
    assert [run.output for run in runs if run.state == "completed"] == [f"receipt {order}" for order in paid]
    paid_back: dict[bytes, bytes] = redis_connection.hgetall("outside:paid back")  # type: ignore[assignment]  # as above
    assert set(paid_back) == {f"receipt {order}".encode() for order in range(CHARGES) if order not in paid}


# -- held steps, while several people settle and recover them at once

RUNS = int(os.environ.get("FAULTS_HELD", "70"))
HELD_KILLS = int(os.environ.get("FAULTS_KILLS", "5"))
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "540"))
HELD_SEED = 20261130


def test_no_charge_is_made_twice_or_lost_while_people_and_kills_decide(
    child_environment: dict[str, str], redis_connection: redis.Redis, tmp_path: Path
) -> None:
    """Each person looks at the run, then at the ledger, and answers for what was seen (`expected`)."""
    chance, log = random.Random(HELD_SEED), tmp_path / "workers.log"
    inputs = [(order, order % 7 == 0, order % 2 == 0) for order in range(RUNS)]
    runs = held_paying.start_many(inputs, ids=[f"order-{order}" for order in range(RUNS)])
    environment = {**child_environment, "E2E_MAX_CRASHES": "1000", "E2E_LEASE": "6.0"}
    people = [Person(number, redis_connection) for number in range(2)]
    deadline = time.monotonic() + PATIENCE
    with Workers(2, environment, log, settings="tests.faults.settings", options=["--concurrency", "4"]) as workers:
        for each in people:
            each.start()
        try:
            for kill in range(HELD_KILLS):
                wait_for(RUNS * kill // (HELD_KILLS + 1), deadline, log)
                workers.kill_one(chance)
            wait_for(RUNS, deadline, log)
        finally:
            for each in people:
                each.stop()
    assert [each.problem for each in people] == [None, None]
    charged: dict[bytes, bytes] = redis_connection.hgetall("outside:charged")  # type: ignore[assignment]  # it is no pipeline
    assert len(charged) == RUNS, "none is lost"
    twice = {key.decode() for key, number in charged.items() if number != b"1"}
    assert not twice, [told(each) for each in runs if key_of(each.id, "order/charge/charge") in twice]
    assert [run.output for run in runs] == [[f"label {order}", f"receipt {order}"] for order in range(RUNS)]
    assert not Failure.objects.filter(is_held=True).exists()
    decided = Counter(OperatorAction.objects.filter(outcome="done").values_list("action", flat=True))
    assert decided["settle"] > RUNS // 10
    assert decided["recover"] > 0


class Person(threading.Thread):
    """Settles or recovers what waits, on a connection of its own, until it is stopped."""

    def __init__(self, number: int, ledger: redis.Redis) -> None:
        super().__init__(name=f"person-{number}", daemon=True)
        self.problem: BaseException | None = None
        self._chance = random.Random(HELD_SEED + number)
        self._ledger = ledger
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                held = list(Failure.objects.filter(is_held=True).values_list("run_id", flat=True)[:20])
                self._chance.shuffle(held)
                for run_id in held[:5]:
                    self._look(run_id)
        except BaseException as error:
            self.problem = error
        finally:
            connections.close_all()

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)

    def _look(self, run_id: str) -> None:
        seen = store_for("default").get(run_id)
        assert seen is not None
        run = get_run(run_id)
        for held in run.info().held:
            with (
                suppress(InvalidTransitionError, StaleRunError, EntryNotFoundError),
                acting_as(Actor("cli", label=self.name), expected=revision(seen)),
            ):
                self._decide(run, held)
            return  # it has changed

    def _decide(self, run: Any, held: Any) -> None:
        if held.reason == "exhausted":
            run.recover() if self._chance.random() < 0.5 else run.settle(held.location, not_done=True)
            return
        if self._chance.random() < 0.3:
            run.recover()
            return
        if self._ledger.hexists("outside:charged", key_of(run.id, held.location)):
            run.settle(held.location, done=f"receipt {run.id.removeprefix('order-')}")
        else:
            run.settle(held.location, not_done=True)


def key_of(run_id: str, location: str) -> str:
    """The idempotency key of a step with `once=True`."""
    [entry] = [each for each in store_for("default").history(run_id) if each.location == location]
    return str(entry.data["once"]["key"])


def told(run: Any) -> list[str]:
    """What was done about a run's steps, in order."""
    done = [
        (each.created_at, f"{each.action} {each.detail} {each.outcome}")
        for each in OperatorAction.objects.filter(run_id=run.id)
    ]
    made = [
        (each.finished_at, f"{each.location} {each.number} {each.error}")
        for each in store_for("default").attempts(run.id)
    ]
    kept = [
        f"{each.location} {each.status} {each.attempts} {each.data}" for each in store_for("default").history(run.id)
    ]
    return [run.id, str(run.state), *(f"{at:%H:%M:%S.%f} {what}" for at, what in sorted([*done, *made])), *kept]


def ended() -> int:
    return Run.objects.filter(finished_at__isnull=False).count()


def wait_for(number: int, deadline: float, log: Path) -> None:
    while ended() < number:
        if time.monotonic() > deadline:
            left = list(Run.objects.filter(finished_at=None).values("id", "state", "summary", "wake_at")[:5])
            raise AssertionError(f"{ended()} of {RUNS} have ended; {left}; {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
