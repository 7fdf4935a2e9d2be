"""A bulk in the background, on workers that are killed while they do it: each run is done once, and logged once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Count

from durable import Actor, acting_as, get_run
from durable.models import OperatorAction, Run
from durable.operations import bulk
from tests.e2e.workers import Workers
from tests.e2e.workflows import bystander

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

RUNS = 600
KILLS = 2


def test_each_run_is_cancelled_once_and_logged_once(child_environment: dict[str, str], tmp_path: Path) -> None:
    ids = [f"r{number:03}" for number in range(RUNS)]
    bystander.using(delay="1 day").start_many([(number,) for number in range(RUNS)], ids=ids)
    olga = User.objects.create_user("olga")
    olga.user_permissions.add(Permission.objects.get(codename="operate_run"))
    with acting_as(Actor("admin", olga), reason="recalled"):
        report = bulk.apply("cancel", ids)
    assert report.run_id is not None
    run = get_run(report.run_id)
    log, chooser = tmp_path / "workers.log", random.Random(1)
    with Workers(1, child_environment, log) as workers:
        deadline = time.monotonic() + 300
        seen = 0
        while run.state != "completed":
            assert time.monotonic() < deadline, f"{run.state}: {run.error}; {log.read_text(errors='replace')[-3000:]}"
            done = OperatorAction.objects.filter(run_id__startswith="r").count()
            if done > seen and workers.kills < KILLS:  # in the middle of it
                seen = done
                workers.kill_one(chooser)
            time.sleep(0.02)
        assert workers.kills == KILLS
    assert (run.result()["done"], run.result()["refused"]) == (RUNS, 0)
    assert set(Run.objects.filter(id__in=ids).values_list("state", "request_reason")) == {("cancelled", "recalled")}
    rows = OperatorAction.objects.filter(run_id__in=ids)
    assert set(rows.values_list("action", "outcome", "actor", "reason")) == {("cancel", "done", olga.pk, "recalled")}
    assert set(rows.values_list("run_id").annotate(count=Count("id")).values_list("count", flat=True)) == {1}
