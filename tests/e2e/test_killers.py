"""A step that kills its process exhausts its own retries, and nobody else's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from durable.models import Run
from tests.e2e.workers import Workers
from tests.e2e.workflows import bystander, killer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

BYSTANDERS = 12


def test_a_step_that_kills_its_worker_is_counted_and_bystanders_are_not(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    handles = [killer.start()]  # due first: the others stand in its batch
    handles += [bystander.start(number) for number in range(BYSTANDERS)]
    with Workers(1, {**child_environment, "E2E_MAX_CRASHES": "3"}, tmp_path / "workers.log"):
        deadline = time.monotonic() + 90
        while Run.objects.exclude(state__in=["completed", "failed"]).exists():
            assert time.monotonic() < deadline, list(Run.objects.values("id", "state", "crashes", "summary"))
            time.sleep(0.1)
    dead = handles[0]
    assert dead.error is not None
    assert dead.error.type == "StepExhaustedError"
    assert '"kill"' in dead.error.message
    assert dead.history()[0].attempts == 3
    assert [handle.output for handle in handles[1:]] == [number * 2 for number in range(BYSTANDERS)]
    assert set(Run.objects.exclude(pk=dead.id).values_list("crashes", flat=True)) == {0}
