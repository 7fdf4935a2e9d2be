"""A worker notes the runs whose histories are long, and nothing of the others."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, workflow
from durable.execution import passes
from durable.models import HistoryCount, Run
from durable.store import store_for
from durable.worker import executor
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]


@workflow(name="tests.long.steps")
def steps(ctx: Context, count: int, seconds: float = 0.0) -> int:
    for number in range(count):
        ctx.step(f"step {number}", str, number)
    if seconds:
        ctx.sleep("nap", seconds)
    return count


@pytest.fixture(autouse=True)
def _four_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "LONG_HISTORY", 3)


def work() -> None:
    with WorkerLoop(InlinePool(), store=store_for("default"), stop=ShutdownFlag()) as made:
        made.work("default")


def test_a_long_history_is_noted_at_the_end_of_each_pass() -> None:
    steps.using(id="ended").start(4)
    steps.using(id="parked").start(4, 3600.0)
    before = timezone.now()
    work()
    noted = dict(HistoryCount.objects.values_list("run_id", "noted_at"))
    assert set(noted) == {"ended", "parked"}
    HistoryCount.objects.update(noted_at=None, counted_as="x", counts="{}")
    Run.objects.filter(pk="parked").update(wake_at=timezone.now())
    work()
    row = HistoryCount.objects.get(pk="parked")
    assert row.noted_at is not None
    assert row.noted_at >= before
    assert (row.counted_as, row.counts) == ("x", "{}"), "they are no longer valid, and replaced when it rests"
    assert HistoryCount.objects.get(pk="ended").noted_at is None


def test_a_short_history_costs_no_statement() -> None:
    steps.using(id="short").start(3)
    with CaptureQueriesContext(connection) as queries:
        work()
    assert Run.objects.get(pk="short").state == "completed"
    assert not [each for each in queries.captured_queries if "historycount" in each["sql"]]
    assert not HistoryCount.objects.exists()


def test_a_database_that_refuses_costs_the_note_alone() -> None:
    steps.using(id="long").start(4)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_historycount RENAME TO durable_elsewhere")
    try:
        work()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE durable_elsewhere RENAME TO durable_historycount")
    assert Run.objects.get(pk="long").state == "completed"
    assert not HistoryCount.objects.exists()
    executor.note("long")
    assert HistoryCount.objects.get().run_id == "long"
