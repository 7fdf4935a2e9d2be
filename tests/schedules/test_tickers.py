"""Tickers with real connections: several at once, killed between statements, thousands due at once."""

import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import close_old_connections, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, Schedule, workflow
from durable.conf import conf
from durable.models import Run, Tick
from durable.operations.schedules.rows import rows
from durable.operations.schedules.tick import next_look, tick_due
from durable.store import store_for
from durable.worker.timer import Ticker
from tests.support.hourly import hourly_at
from tests.support.plans import read
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.redis]

PAST = datetime(2026, 1, 1, tzinfo=UTC)


@workflow(name="tests.tickers.job")
def job(ctx: Context) -> None:
    return None


def make(count: int, **columns: Any) -> None:
    """Schedules that are due since half a minute, and again in an hour less half a minute, whatever time it is."""
    moment = timezone.now().replace(microsecond=0) - timedelta(seconds=30)
    made = [
        Schedule(
            name=f"s-{number}",
            workflow="tests.tickers.job",
            rule=hourly_at(moment),
            input='{"args":[],"kwargs":{}}',
            next_at=moment,
            due_at=moment,
            created_at=moment,
            **columns,
        )
        for number in range(count)
    ]
    Schedule.objects.bulk_create(made)


def test_five_tickers_start_one_run_for_each_moment(transactional_db: None) -> None:
    make(300)
    begin = threading.Barrier(5)

    def work() -> None:
        try:
            begin.wait(60)
            while next_look(timezone.now()) is not None and rows().filter(due_at__lte=timezone.now()).exists():
                tick_due(timezone.now())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    assert Run.objects.count() == Tick.objects.filter(outcome="started").count() == Tick.objects.count() == 300


def test_a_ticker_starts_what_is_due_and_what_becomes_due() -> None:
    make(1)
    with Ticker(store_for(conf.DATABASE)):
        eventually(lambda: Run.objects.count() == 1)
        Schedule.objects.create(name="soon", workflow="tests.tickers.job", rule="every 1 second")
        eventually(lambda: Tick.objects.filter(schedule__name="soon").count() >= 2)
    ticks = Tick.objects.filter(schedule__name="soon", outcome="started")
    assert all(each.decided_at >= each.moment for each in ticks)


def test_a_waiting_tick_begins_when_the_run_is_no_longer_there() -> None:
    make(1, overlap="queue")
    tick_due(timezone.now())
    run = Run.objects.get()
    later = timezone.now() + timedelta(hours=1)
    tick_due(later)
    assert Tick.objects.filter(outcome="waiting").count() == 1
    assert next_look(later) != later
    run.delete()
    assert next_look(later) == later
    assert tick_due(later) == 1
    assert Tick.objects.filter(outcome="waiting").count() == 0
    assert Run.objects.count() == 1


KILLED = """
import os, signal, sys
import django
django.setup()
from django.db import connection
from django.utils import timezone
from durable import Context, workflow
from durable.operations.schedules.tick import tick_due

@workflow(name="tests.tickers.job")
def job(ctx: Context) -> None:
    return None

left = int(sys.argv[1])

def counting(execute, *call):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(*call)

with connection.execute_wrapper(counting):
    tick_due(timezone.now())
"""


def test_a_ticker_that_is_killed_between_two_statements_leaves_no_half_tick(child_environment: dict[str, str]) -> None:
    make(1)
    survived = False
    for statements in range(1, 30):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(statements)], env=child_environment, check=False, timeout=300
        )
        close_old_connections()
        survived = done.returncode == 0
        if survived:
            break
        assert done.returncode == -signal.SIGKILL
        whole = (Run.objects.count(), Tick.objects.count(), rows().get().tick_count)
        assert whole == (0, 0, 0), f"after statement {statements}"
    assert survived
    assert statements > 3
    assert (Run.objects.count(), Tick.objects.count(), rows().get().tick_count) == (1, 1, 1)


def test_a_batch_takes_few_statements() -> None:
    make(40)
    with CaptureQueriesContext(connection) as captured:
        assert tick_due(timezone.now()) == 40
    assert len(captured) < 60, [each["sql"][:100] for each in captured]


@pytest.mark.skipif(settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"), reason="plans of PostgreSQL")
def test_a_look_at_ten_thousand_schedules_reads_an_index() -> None:
    moment = timezone.now() + timedelta(hours=1)
    make(10_000)
    rows().update(next_at=moment, due_at=moment)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_schedule")
    with CaptureQueriesContext(connection) as captured:
        assert next_look(timezone.now()) == moment
    assert len(captured) == 1
    assert read(captured, "durable_schedule") <= 2
