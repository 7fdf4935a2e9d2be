"""What a step had saved when its worker was killed is there for the next attempt, about a second old at most."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from durable.models import StepSave
from tests.e2e.workers import Workers
from tests.faults.workflows import saving
from tests.support.waiting import eventually, wait_until_ended


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
