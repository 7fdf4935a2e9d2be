"""Steps that kill their process, bulks on workers that are killed, and runs that are moved to a queue with a worker."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db.models import Count
from django.test import override_settings

from durable import Handle, get_run
from durable.models import OperatorAction, Run
from durable.operations import Actor, acting_as, bulk
from tests.e2e.workers import Workers
from tests.e2e.workflows import WAYS, bystander, hoarder, killer, slow_bystander

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


BYSTANDERS = 12


def assert_exhausted(handle: Handle, step: str, attempts: int) -> None:
    assert handle.error is not None
    assert handle.error.type == "StepExhaustedError"
    assert f'"{step}"' in handle.error.message
    assert handle.history()[0].attempts == attempts


def wait_until_ended(log: Path) -> None:
    deadline = time.monotonic() + 300
    while Run.objects.exclude(state__in=["completed", "failed"]).exists():
        left = list(Run.objects.values("id", "state", "crashes", "summary"))
        assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.1)


def test_steps_that_kill_their_workers_are_counted_and_bystanders_are_not(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    killers = {way: killer.start(way) for way in WAYS}  # due first: the others stand in their batch
    greedy = hoarder.start()
    bystanders = [bystander.start(number) for number in range(BYSTANDERS)]
    log = tmp_path / "workers.log"
    with Workers(len(WAYS), {**child_environment, "E2E_MAX_CRASHES": "3"}, log):
        wait_until_ended(log)
    for way, handle in killers.items():
        assert_exhausted(handle, f"kill by {way}", 2)
        assert "the worker died during attempt 2" in str(handle.error)
    assert_exhausted(greedy, "hoard", 2)
    assert "MemoryError" in str(greedy.error)
    assert [handle.output for handle in bystanders] == [number * 2 for number in range(BYSTANDERS)]
    unharmed = Run.objects.exclude(pk__in=[each.id for each in killers.values()])
    assert set(unharmed.values_list("crashes", flat=True)) == {0}
    assert "Fatal Python error: Segmentation fault" in log.read_text(errors="replace")


def test_a_step_that_kills_a_worker_of_several_runs_at_once_costs_those_beside_it_one_pass(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    """They are in its process once. A second time would exhaust their steps, which are not retried."""
    alone = killer.start("exit")
    bystanders = [slow_bystander.start(number) for number in range(BYSTANDERS)]
    log = tmp_path / "workers.log"
    with Workers(1, {**child_environment, "E2E_MAX_CRASHES": "3"}, log, options=["--concurrency=4"]):
        wait_until_ended(log)
    assert_exhausted(alone, "kill by exit", 2)
    assert [handle.output for handle in bystanders] == [number * 2 for number in range(BYSTANDERS)]
    assert log.read_text(errors="replace").count("died, pid") == 3


# -- A bulk in the background, on workers that are killed while they do it: each run is done once, and logged once


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


# -- A run that is due on a queue without a worker is moved to one with a worker, and completes there


def test_a_run_on_a_queue_that_nobody_serves_is_moved_and_completes(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "exports": settings.RQ_QUEUES["default"]}):
        lost = bystander.using(id="lost", queue="exports").start(1)
    with Workers(1, child_environment, tmp_path / "workers.log"):
        bystander.using(id="served").start(2).result(timeout=120)  # the worker has looked for runs
        assert lost.state == "pending"
        lost.move("default")
        lost.result(timeout=120)
    assert lost.info().queue == "default"
    assert OperatorAction.objects.get(run_id="lost").detail == 'from the queue "exports" to "default"'
