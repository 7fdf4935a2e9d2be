"""Among many runs, the newest of a tag are one range of an index: nothing is sorted, and no more is read than shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durable.inspection.pagination import Cursor, RunOrder
from durable.models import Run, RunTag
from durable.models.run import TAG_KEY, RunQuerySet
from tests.support.plans import most_read, scans, sorts

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db]

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
TABLES: Final = {"durable_run", "durable_runtag"}
RUNS: Final = 20_000


@pytest.fixture
def many_runs(db: None) -> None:
    """Each run has a tenant, half of them the same one; each hundredth a stage, and each an order of its own."""
    runs = [
        Run(id=f"r{number:05}", workflow="w", queue="q", input="[]", created_at=NOW + timedelta(seconds=number // 3))
        for number in range(RUNS)
    ]
    Run.objects.bulk_create(runs, batch_size=1_000)
    tags: list[RunTag] = []
    for number, run in enumerate(runs):
        named = {"tenant": "acme" if number % 2 else f"t{number % 500}", "order": str(number)}
        if number % 100 == 1:
            named["stage"] = "paid"
        tags += [
            RunTag(run=run, name=name, value=value, start_value=value, created_at=run.created_at)
            for name, value in named.items()
        ]
    RunTag.objects.bulk_create(tags, batch_size=2_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run, durable_runtag")


def behind(runs: RunQuerySet, run_id: str) -> RunQuerySet:
    """The runs of a tag that follow this one in a list."""
    run = runs.get(pk=run_id)
    cursor = Cursor.of(run, RunOrder.NEWEST)
    return runs.tagged(tenant="acme").filter(cursor.behind(TAG_KEY))


#: A page, its first run, and how many rows it may read at most.
PAGES: Final[list[tuple[Callable[[RunQuerySet], Any], str, int]]] = [
    (lambda runs: runs.tagged(tenant="acme"), "r19999", 120),
    (lambda runs: runs.tagged(tenant="acme").reverse(), "r00001", 120),
    (lambda runs: behind(runs, "r10001"), "r09999", 120),
    (lambda runs: runs.tagged(order=7), "r00007", 120),
    (lambda runs: runs.tagged(tenant="acme", order=7), "r00007", 120),
    (lambda runs: runs.tagged(order=7, tenant="acme"), "r00007", 120),
    (lambda runs: runs.tagged(stage="paid", tenant="acme"), "r19901", 500),
    (lambda runs: runs.tagged(tenant="acme").open(), "r19999", 120),
]


def test_a_page_reads_what_it_shows(many_runs: None) -> None:
    for number, (page, first, most) in enumerate(PAGES):  # on the same rows, which take long to make
        wanted = page(Run.objects.all())[:50]
        with CaptureQueriesContext(connection) as queries:
            shown = list(wanted)
        assert len(queries) == 1, number
        assert shown[0].id == first, number
        assert scans(queries, TABLES) + sorts(queries, TABLES) == [], number
        assert most_read(queries)[0] <= most, number
