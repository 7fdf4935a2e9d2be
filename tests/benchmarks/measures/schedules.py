"""How late schedules tick, and what many of them cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from statistics import median

from django.db import connection
from django.utils import timezone

from durable import Schedule, get_run
from durable.models import Run, Tick
from durable.operations.schedules.rows import delay_of, rows
from durable.operations.schedules.tick import next_look, tick_due
from tests.benchmarks.measuring import Bench, Figure, measure, percentile, seconds
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import PATIENCE, wait_until, workers
from tests.benchmarks.workflows import ticking

_MANY = 10_000


@measure("schedules")
def schedules(bench: Bench) -> Iterator[Figure]:
    """From the moment of a tick to its transaction, and to the code of its run, by one worker: milliseconds.

    Idle: five schedules, each with a moment a second, put off by jitter so that no two are due together. Then what a
    look costs that finds nothing due among 10,000 schedules, and how long one ticker takes to start the runs of all of
    them when they are due at once; no worker runs meanwhile.
    """
    with workers(1):
        late = _lateness(bench.size(300, 25))
    for what, values in late.items():
        yield Figure(f"{what}, median", median(values) * 1000, "ms")
        yield Figure(f"{what}, p99", percentile(values, 0.99) * 1000, "ms")
    count = bench.size(_MANY, 500)
    moment = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    _make(count, moment)
    looks = [seconds(lambda: next_look(timezone.now())) for _ in range(100)]
    yield Figure(f"look at {count:,} schedules, median", median(looks) * 1000, "ms")
    yield Figure(f"{count:,} ticks at once", count / seconds(lambda: _tick_all(moment, count)), "/s")
    _forget()


def _lateness(ticks: int) -> dict[str, list[float]]:
    for number in range(5):
        name = f"idle-{number}"
        Schedule.objects.create(name=name, workflow=ticking.name, rule="every 1 second", jitter="1 s", overlap="allow")
    runs = Run.objects.filter(workflow=ticking.name, finished_at__isnull=False)
    wait_until(lambda: runs.count() >= ticks, "schedules do not tick", PATIENCE + ticks)
    rows().update(paused=True, due_at=None)
    wait_until(lambda: not Run.objects.filter(finished_at__isnull=True).exists(), "runs go on", PATIENCE)
    by_id = {each.pk: each for each in rows()}
    found: dict[str, list[float]] = {"tick": [], "tick to its run's code": []}
    for tick in Tick.objects.filter(outcome="started").order_by("moment")[
        5:
    ]:  # the first make the worker's caches warm
        due = tick.moment + delay_of(by_id[tick.schedule_id], tick.moment)
        found["tick"].append((tick.decided_at - due).total_seconds())
        found["tick to its run's code"].append(get_run(tick.run_id).result(timeout=PATIENCE) - due.timestamp())
    _forget()
    return found


def _make(count: int, moment: datetime) -> None:
    made = [
        Schedule(
            name=f"many-{number}",
            workflow=ticking.name,
            rule="every 1 hour",
            input='{"args":[],"kwargs":{}}',
            next_at=moment,
            due_at=moment,
            created_at=moment,
        )
        for number in range(count)
    ]
    Schedule.objects.bulk_create(made, batch_size=1_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_schedule")


def _tick_all(moment: datetime, count: int) -> None:
    ticked = 0
    while ticked < count:
        ticked += tick_due(moment)
    started = Run.objects.filter(workflow=ticking.name).count()
    assert started == count, f"{started} of {count} runs were started"


def _forget() -> None:
    rows().all().delete()
    empty_tables()
