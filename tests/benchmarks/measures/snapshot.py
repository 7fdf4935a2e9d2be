"""Throughput while another session holds an old snapshot, so that vacuum removes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from django.db.models import Max, Min

from durable.models import Run
from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.workers import wait_until, workers
from tests.benchmarks.workflows import steps


@measure("held snapshot")
def under_a_held_snapshot(bench: Bench) -> Iterator[Figure]:
    """One-step runs per second by one `durable_worker`, before and after 100,000 under a REPEATABLE READ snapshot.

    Both are medians of three batches of 2,000 that are started together; the runs between them are batches as well, and
    all stay in the tables. A dump, an idle transaction or a replica's feedback holds such a snapshot.
    """
    batch = bench.size(2_000, 50)
    batches = bench.size(100_000, 200) // batch
    with workers(1):
        before = [_rate(batch) for _ in range(3)]
        with _held_snapshot(bench.database_url):
            under = [_rate(batch) for _ in range(batches)][-3:]
        yield Figure("one-step runs before a snapshot", sorted(before)[1], "/s")
        yield Figure("one-step runs under a snapshot", sorted(under)[1], "/s")


@contextmanager
def _held_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM durable_run")
        yield


def _rate(batch: int) -> float:
    """Runs of a batch per second, from the start of the first to the end of the last."""
    ids = [handle.id for handle in steps.start_many([(1,)] * batch)]
    wait_until(lambda: _are_over(ids), "runs go on", 600)
    span = Run.objects.filter(pk__in=ids).aggregate(first=Min("created_at"), last=Max("finished_at"))
    seconds: float = (span["last"] - span["first"]).total_seconds()
    return len(ids) / seconds


def _are_over(ids: Sequence[str]) -> bool:
    """Asked by key: a question by state would pass over what the snapshot keeps, beside the workers."""
    last = Run.objects.filter(pk=ids[-1], finished_at__isnull=False).exists()
    return last and not Run.objects.filter(pk__in=ids, finished_at__isnull=True).exists()
