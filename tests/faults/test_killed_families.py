"""Parents and children while their workers are killed: each family comes to its end, and each step counts once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from durable import Handle
from durable.models import Cascade, Child, Run
from project.shop.models import Mail
from tests.e2e.workers import Workers
from tests.faults.workflows import family, shelved, undone

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

FAMILIES = 6
CHILDREN = 4
KILLS = 6


def test_families_come_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    handles: list[Handle] = [family.using(id=f"family-{each}").start(CHILDREN) for each in range(FAMILIES)]
    ended = [shelved.using(id=f"shelved-{each}").start(CHILDREN) for each in range(2)]
    dice = random.Random(7)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        deadline = time.monotonic() + 400
        while Run.objects.open().exists():
            left = list(Run.objects.open().values("id", "state", "crashes", "summary", "waiting_for"))
            assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
            time.sleep(dice.uniform(0.1, 0.6))
            if workers.kills < KILLS and Run.objects.ended().exists():
                workers.kill_one(dice)
    expected = [f"label {each}" for each in range(CHILDREN)]
    assert [handle.output for handle in handles] == [[*expected, f"mail {CHILDREN}"]] * FAMILIES
    assert Child.objects.filter(parent_id="family-0").count() == CHILDREN + 1
    assert {handle.state for handle in ended} == {"completed"}
    assert set(Run.objects.filter(parent__in=[each.id for each in ended]).values_list("state", flat=True)) == {
        "cancelled"
    }
    assert not Cascade.objects.exists()


def test_compensations_of_families_come_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    tops = [undone.using(id=f"undone-{each}").start(2) for each in range(3)]
    dice = random.Random(8)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        deadline = time.monotonic() + 400
        while Run.objects.open().exists():
            left = list(Run.objects.open().values("id", "state", "crashes", "summary", "waiting_for"))
            assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
            time.sleep(dice.uniform(0.1, 0.6))
            if workers.kills < KILLS and Run.objects.filter(state="rolling_back").exists():
                workers.kill_one(dice)
    assert {handle.state for handle in tops} == {"failed"}
    children = Run.objects.filter(id__contains=":")
    assert set(children.values_list("state", flat=True)) == {"cancelled"}
    assert children.count() == 3 * 6
    for run_id in Run.objects.values_list("id", flat=True):
        assert Mail.objects.filter(idempotency_key__startswith=f"{run_id} ").count() == 2, run_id
    assert workers.kills
