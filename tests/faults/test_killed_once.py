"""Charges under kills: the bank's own ledger says that none was made twice, lost, or paid back without having been.

`FAULTS_CHARGES=2000 FAULTS_KILLS=40` makes a storm of it.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import redis

from durable.models import Run
from tests.e2e.workers import Workers
from tests.faults.workflows import paying
from tests.support.waiting import wait_until_ended

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

CHARGES = int(os.environ.get("FAULTS_CHARGES", "300"))
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
            wait_for_progress(CHARGES * kill // (KILLS + 1), log)
            workers.kill_one(chance)
        wait_until_ended(log)
    charged: dict[bytes, bytes] = redis_connection.hgetall("outside:charged")  # type: ignore[assignment]  # it is no pipeline
    assert len(charged) == CHARGES
    assert set(charged.values()) == {b"1"}
    assert [run.output for run in runs if run.state == "completed"] == [f"receipt {order}" for order in paid]
    paid_back: dict[bytes, bytes] = redis_connection.hgetall("outside:paid back")  # type: ignore[assignment]  # as above
    assert set(paid_back) == {f"receipt {order}".encode() for order in range(CHARGES) if order not in paid}


def wait_for_progress(number: int, log: Path) -> None:
    deadline = time.monotonic() + 300
    while Run.objects.filter(finished_at__isnull=False).count() < number:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.02)
