"""A bulk with a canary while its workers are killed: each run is recovered once, and none before the canary is over."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from pathlib import Path

import pytest

from durable import Actor, acting_as, get_run
from durable.models import OperatorAction, Run
from durable.operations import bulk
from durable.operations.canary import Canary
from tests.e2e.workers import Workers
from tests.faults.workflows import mended
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

RUNS = 24
FIRST = 4
KILLS = 4


def test_a_canary_bulk_comes_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log, marker = tmp_path / "workers.log", tmp_path / "mended"
    ids = [f"run-{number:02}" for number in range(RUNS)]
    dice = random.Random(5)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    mended.start_many([(str(marker),)] * RUNS, ids=ids)
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        eventually(lambda: Run.objects.filter(pk__in=ids, state="failed").count() == RUNS)
        marker.touch()
        with acting_as(Actor("cli", label="ops"), reason="mended"):
            report = bulk.apply("recover", ids, canary=Canary(first=FIRST), rate=5)
        assert report.run_id is not None
        order = get_run(report.run_id)
        deadline = time.monotonic() + 300
        while order.state not in ("completed", "failed") or Run.objects.open().exists():
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(dice.uniform(0.1, 0.5))
            if workers.kills < KILLS:
                workers.kill_one(dice)
    assert workers.kills == KILLS
    assert (order.state, order.result()["done"]) == ("completed", RUNS)
    assert set(Run.objects.filter(pk__in=ids).values_list("state", flat=True)) == {"completed"}
    done = OperatorAction.objects.filter(action="recover", outcome="done", bulk_id=order.id).order_by("id")
    recovered = list(done.values_list("run_id", flat=True))
    assert sorted(recovered) == ids, "each run once"
    canary, rest = recovered[:FIRST], recovered[FIRST:]
    ended = Run.objects.filter(pk__in=canary).order_by("-finished_at").values_list("finished_at", flat=True)[0]
    first = done.get(run_id=rest[0])
    assert ended is not None
    assert first.created_at >= ended - timedelta(milliseconds=1)
