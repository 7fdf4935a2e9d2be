"""A worker that is killed while a step runs leaves a row of what runs now; nobody is shown it as running."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from django.utils import timezone

from durable.conf import conf
from durable.inspection.activities import list_activities
from durable.inspection.explain_states import explain_fully
from durable.models import Activity, Run
from durable.store import store_for
from tests.e2e.workers import Workers
from tests.faults.workflows import hanging
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
