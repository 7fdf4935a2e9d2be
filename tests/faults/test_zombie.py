"""A worker that wakes up past its lease writes nothing; runs that lock the same rows in other orders come through."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import redis

from durable import Handle
from durable.models import Entry, QueueMessage, Run
from project.shop.models import Mail
from tests.e2e.workers import Workers
from tests.faults.workflows import crossing, haunted
from tests.support.waiting import eventually, wait_until_ended

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


SETTINGS = "tests.faults.settings"


def ended(handle: Handle) -> bool:
    return handle.state in ("completed", "failed")


@pytest.mark.parametrize("is_atomic", [True, False], ids=["atomic", "plain"])
def test_a_worker_that_wakes_after_its_lease_writes_nothing(
    is_atomic: bool, child_environment: dict[str, str], redis_connection: redis.Redis, tmp_path: Path
) -> None:
    log, other = tmp_path / "zombie.log", tmp_path / "other.log"
    with Workers(1, child_environment, log, settings=SETTINGS):
        handle = haunted.start(is_atomic)
        held: list[bytes] = redis_connection.blpop([f"{handle.id}:holds"], timeout=120)  # type: ignore[assignment]  # it is no pipeline
        assert held, log.read_text()
        zombie = int(held[1])
        psutil.Process(zombie).send_signal(signal.SIGSTOP)
        try:
            with Workers(1, child_environment, other, settings=SETTINGS):
                eventually(lambda: ended(handle), log=other)
                row = Run.objects.values().get(pk=handle.id)
                entries = list(Entry.objects.filter(run=handle.id).order_by("id").values("location", "data", "id"))
                history = handle.history()
        finally:
            psutil.Process(zombie).send_signal(signal.SIGCONT)
            redis_connection.rpush(f"{handle.id}:go", 1)
        eventually(lambda: "taken over by another worker" in log.read_text(), log=log)
        said = next(line for line in log.read_text().splitlines() if "nothing was written" in line)
        assert handle.id in said
    assert handle.state == "completed"
    survivor = handle.result()[0]
    assert handle.output == [survivor, survivor]
    assert survivor != zombie
    assert Run.objects.values().get(pk=handle.id) == row
    assert list(Entry.objects.filter(run=handle.id).order_by("id").values("location", "data", "id")) == entries
    assert handle.history() == history
    keys = set(Mail.objects.values_list("idempotency_key", flat=True))
    assert f"{handle.id} {survivor}" in keys
    assert (f"{handle.id} {zombie}" in keys) is not is_atomic  # what a plain step writes is its own affair


# -- runs whose atomic steps send to each other lock the same rows in opposite orders: both come through


PAIRS = 3
MESSAGES = 5


def test_runs_that_deadlock_come_through(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    handles = []
    for number in range(PAIRS):
        one, other = f"one-{number}", f"other-{number}"
        handles += [crossing.using(id=one).start(other, MESSAGES), crossing.using(id=other).start(one, MESSAGES)]
    with Workers(3, {**child_environment, "E2E_MAX_CRASHES": "100"}, log, settings="tests.faults.settings"):
        wait_until_ended(log)
    assert [handle.output for handle in handles] == [list(range(MESSAGES))] * len(handles)
    assert QueueMessage.objects.count() == MESSAGES * len(handles)
