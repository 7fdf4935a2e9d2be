"""Runs whose atomic steps send to each other lock the same rows in opposite orders: both come through."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from durable.models import QueueMessage, Run
from tests.e2e.workers import Workers
from tests.faults.workflows import crossing

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

PAIRS = 3
MESSAGES = 5


def test_runs_that_deadlock_come_through(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    handles = []
    for number in range(PAIRS):
        one, other = f"one-{number}", f"other-{number}"
        handles += [crossing.using(id=one).start(other, MESSAGES), crossing.using(id=other).start(one, MESSAGES)]
    with Workers(3, {**child_environment, "E2E_MAX_CRASHES": "100"}, log, settings="tests.faults.settings"):
        deadline = time.monotonic() + 300
        while Run.objects.exclude(state__in=["completed", "failed"]).exists():
            left = list(Run.objects.values("id", "state", "crashes", "summary"))
            assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.1)
    assert [handle.output for handle in handles] == [list(range(MESSAGES))] * len(handles)
    assert QueueMessage.objects.count() == MESSAGES * len(handles)
