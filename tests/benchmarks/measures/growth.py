"""How costs grow with what lies in the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from durable.conf import conf
from durable.store import store_for
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, empty_tables, one_pass, work_off
from tests.benchmarks.workflows import steps

#: Copies of a run, in bulk, as the engine leaves them. Parameters: prefix, state, count.
FILL = """INSERT INTO durable_run SELECT copy.* FROM durable_run AS t, generate_series(1, %(count)s) AS n,
  jsonb_populate_record(t, jsonb_build_object('id', %(prefix)s || n, 'state', %(state)s::text,
    'wake_at', CASE WHEN %(state)s = 'sleeping' THEN now() + interval '1 day' + n * interval '1 s' END,
    'finished_at', CASE WHEN %(state)s = 'completed' THEN now() END)) AS copy"""


@measure("growth")
def growth(bench: Bench) -> Iterator[Figure]:
    """What takes longer when there is ten times as much: the time for ten times, divided by ten times that for once.
    among 10,000 and 100,000 sleeping or finished ones; and twenty claims alone out of 2,000 and 20,000 due runs. Shows
    no table that is larger than memory.
    """
    few = bench.size(1500, 200)
    first, tenfold = (_steps(count) for count in (few, 10 * few))
    yield Figure("growth with 10x steps", tenfold / first / 10, "times")
    others = bench.size(10_000, 1000)
    for state in ("sleeping", "completed"):
        first, tenfold = (_claims(bench, state, count) for count in (others, 10 * others))
        yield Figure(f"growth with 10x {state} runs", tenfold / first, "times")
    due = bench.size(2000, 500)
    first, tenfold = (_batches(count) for count in (due, 10 * due))
    yield Figure("growth of a claim with 10x due runs", tenfold / first, "times")


def _steps(count: int) -> float:
    record = claimed(steps.start(count))
    return seconds(lambda: one_pass(record))


def _claims(bench: Bench, state: str, others: int) -> float:
    empty_tables()
    steps.start(1)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"prefix": f"{state}-", "state": state, "count": others})
        cursor.execute("VACUUM (ANALYZE) durable_run")  # tables that have grown by and by have been vacuumed
    for _ in range(bench.size(4, 1)):
        steps.start_many([(1,)] * bench.size(500, 100))
    return seconds(work_off)


def _batches(due: int) -> float:
    """Twenty claims out of so many due runs."""
    empty_tables()
    for _ in range(due // 500):
        steps.start_many([(1,)] * 500)
    now, store = timezone.now(), store_for("default")
    until = now + timedelta(hours=1)

    def work() -> None:
        for _ in range(20):
            assert store.claim(queue=conf.QUEUE, now=now, lease_until=until, worker="benchmark", limit=10)

    return seconds(work)
