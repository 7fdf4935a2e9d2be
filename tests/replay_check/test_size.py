"""A long history: how much memory its check takes, and how few statements."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final, TypeVar

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.replay_check.reading import open_runs, sampled_runs
from tests.replay_check.conftest import Deploys

pytestmark = pytest.mark.slow

LONG: Final = 30_000

T = TypeVar("T")


def long_history(deploys: Deploys, length: int, run_id: str = "long") -> None:
    """A run that has done so many steps."""
    deploys.start(id=run_id)
    now = timezone.now()
    entries = [
        EntryRecord(
            location=f"step {number}",
            kind=EntryKind.STEP,
            ordinal=number + 10,
            created_at=now,
            status=EntryStatus.COMPLETED,
            attempts=1,
            output=f'{{"number": {number}}}',
            completed_at=now,
            finished_ordinal=length + number + 10,
        )
        for number in range(length)
    ]
    deploys.at.store.import_history(run_id, entries=entries, attempts=[], messages=[])


def waits(ctx: Context) -> None:
    ctx.sleep("wait", "1 day")


def steps(length: int) -> Callable[[Context], None]:
    def goes_through(ctx: Context) -> None:
        for number in range(length):
            ctx.step(f"step {number}", print)
        ctx.sleep("wait", "1 day")

    return goes_through


def measured(check: Callable[[], T]) -> tuple[T, int]:
    """What the check returns, and the most memory that it took."""
    gc.collect()
    tracemalloc.start()
    try:
        return check(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_of_one_history_whatever_their_number(deploys: Deploys) -> None:
    length = 700
    deploys.deploy(waits)
    for number in range(4):
        long_history(deploys, length, f"long-{number}")
    deploys.deploy(steps(length))
    peaks = []
    for ids in (["long-0"], [f"long-{number}" for number in range(4)]):
        deploys.verdict(ids[0])
        go_on, peak = measured(lambda: [deploys.goes_on(of=each) for each in ids])  # noqa: B023  # called at once
        assert all(go_on)
        peaks.append(peak)
    assert peaks[1] < peaks[0] * 2


def test_thirty_thousand_entries_take_no_more_than_a_worker_needs_for_them(deploys: Deploys) -> None:
    deploys.deploy(waits)
    long_history(deploys, LONG)
    deploys.deploy(steps(LONG))
    verdict, peak = measured(lambda: deploys.verdict("long"))
    assert verdict.finding is None
    assert verdict.operations == LONG + 1
    assert peak < LONG * 2_000


def test_statements_do_not_grow_with_the_history(deploys: Deploys) -> None:
    counts = []
    for length in (10, 1_000):
        deploys.deploy(waits)
        long_history(deploys, length, f"of {length}")
        deploys.deploy(steps(length))
        with CaptureQueriesContext(connection) as captured:
            assert deploys.goes_on(of=f"of {length}")
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_choosing_the_runs_takes_a_statement_for_a_page_of_them(deploys: Deploys) -> None:
    deploys.deploy(lambda ctx: None)
    for number in range(30):
        deploys.start(id=f"ended-{number}")
    deploys.deploy(waits)
    for number in range(30):
        deploys.start(id=f"open-{number}")
    with CaptureQueriesContext(connection) as captured:
        total, ids = open_runs([])
        assert (total, len(list(ids))) == (30, 30)
        assert sampled_runs([], 10) == (30, [f"ended-{number}" for number in range(29, 19, -1)])
    assert len([each for each in captured if each["sql"].startswith(("SELECT", "WITH"))]) < 20
