"""A run is checked while a worker of another process records it: no check finds what is not so."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest
from django.db.models import Max

from durable.models import Entry
from durable.replay_check.checking import Facts, check_stored
from tests.e2e.workers import Workers
from tests.e2e.workflows import collect

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

OVERTAKEN = 20  # checks during which the worker has committed


def newest() -> int | None:
    """The key of the entry that was recorded last."""
    found: int | None = Entry.objects.filter(run="run").aggregate(newest=Max("pk"))["newest"]
    return found


def test_no_check_of_a_run_under_way_has_a_finding(child_environment: dict[str, str], tmp_path: Path) -> None:
    log, numbers, overtaken = tmp_path / "worker.log", count(), 0
    handle = collect.using(id="run").start(1_000_000)
    facts = Facts.of_database()
    deadline = time.monotonic() + 300
    with Workers(1, child_environment, log):
        while overtaken < OVERTAKEN:
            assert time.monotonic() < deadline, f"{overtaken}; {log.read_text(errors='replace')[-3000:]}"
            for _ in range(30):
                handle.send("numbers", next(numbers))
            before = newest()
            [verdict] = check_stored(["run"], facts)
            overtaken += newest() != before
            assert verdict is not None
            assert (verdict.finding, verdict.unchecked) == (None, "")
