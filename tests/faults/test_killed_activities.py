"""A worker is killed while a step runs: nobody is shown it as running, and what it saved is there for the next one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from django.utils import timezone

from durable.conf import conf
from durable.inspection.activities import list_activities
from durable.inspection.explanation import explain_fully
from durable.models import Activity, Run, StepSave
from durable.store import store_for
from tests.e2e.workers import Workers
from tests.faults.workflows import hanging, saving
from tests.support.waiting import eventually, wait_until_ended


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_a_killed_worker_has_left_is_never_shown(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    handle = hanging.start(str(tmp_path / "began"))
    with Workers(1, child_environment, log, settings="tests.faults.persistent") as workers:
        eventually(lambda: len(list_activities(timezone.now()).steps) == 1)
        [left] = Activity.objects.all()
        run = Run.objects.get(pk=handle.id)
        assert 'Running step "hang" for' in explain_fully(run, timezone.now()).headline
        workers.kill_one(random.Random(1))
        wait_until_ended(log)
    assert handle.output == "returned"
    assert list_activities(timezone.now()).steps == []
    assert Run.objects.get(pk=handle.id).fence > left.fence
    store_for(conf.DATABASE).forget_activities()
    assert not Activity.objects.exists()


# -- what a step had saved when its worker was killed is there for the next attempt, about a second old at most


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_next_attempt_goes_on_with_what_a_killed_worker_has_written(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    log, marker = tmp_path / "worker.log", tmp_path / "saved"
    handle = saving.start(str(marker))
    with Workers(1, child_environment, log, settings="tests.faults.persistent") as workers:
        eventually(marker.exists)
        eventually(lambda: StepSave.objects.filter(run=handle.id, number__gt=10).exists())
        written = StepSave.objects.get(run=handle.id)
        workers.kill_one(random.Random(1))
        wait_until_ended(log)
    assert handle.output is not None
    assert handle.output >= written.number - 1
    assert not StepSave.objects.exists()
