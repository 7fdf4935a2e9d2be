"""Processes that the code of a run forks: pools work, and a child that comes back does not become a second worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from durable.models import Run
from project.shop.models import Mail
from tests.e2e.workers import Workers
from tests.faults.workflows import forked_body, forked_step, pooled, terminated
from tests.support.waiting import wait_until_ended

pytestmark = [pytest.mark.postgres, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture(params=["1", "4"])
def options(request: pytest.FixtureRequest) -> list[str]:
    return ["--concurrency", str(request.param)]


def work(environment: dict[str, str], log: Path, options: list[str]) -> str:
    """Pass all runs; what the worker has said."""
    with Workers(1, environment, log, settings="tests.faults.settings", options=options) as workers:
        wait_until_ended(log)
        [child] = workers.children
        psutil.wait_procs(child.children(recursive=True), timeout=60)
        assert child.children(recursive=True) == []
    return log.read_text(errors="replace")


def test_a_pool_of_forked_processes_works_in_a_step(
    child_environment: dict[str, str], tmp_path: Path, options: list[str]
) -> None:
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key="one")
    handles = [pooled.start(), terminated.start()]
    said = work(child_environment, tmp_path / "worker.log", options)
    assert [each.output for each in handles] == [[1] * 4, -15], said


@pytest.mark.parametrize("workflow", [forked_step, forked_body])
@pytest.mark.parametrize("way", ["return", "raise", "exit"])
def test_a_child_that_comes_back_ends(
    child_environment: dict[str, str], tmp_path: Path, options: list[str], workflow: Any, way: str
) -> None:
    handle = workflow.start(way)
    said = work(child_environment, tmp_path / "worker.log", options)
    assert handle.output == ["parent", 70 << 8], (handle.error, said)
    if workflow is forked_body:
        assert Mail.objects.count() == 1
    assert [entry.attempts for entry in handle.history()] == [1] * len(handle.history())
    assert re.search(rf"code of run {handle.id} has forked .* came back", said)
    assert Run.objects.get(pk=handle.id).crashes == 0
