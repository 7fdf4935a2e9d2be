"""A step that kills its process, or eats its memory, exhausts its own retries, and no other step's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from durable import Handle
from durable.models import Run
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
