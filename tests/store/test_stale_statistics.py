"""What PostgreSQL knows of its tables may be older than nearly all their rows: after a restore, before an ANALYZE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from durable.core.records import EntryStatus
from durable.models import Entry
from durable.store.postgres import PostgresStore
from tests.store.conftest import POSTGRES
from tests.store.making import a_run, an_entry, commit, started

MANY = 50_000


@pytest.fixture
def stale(postgres_store: PostgresStore) -> Iterator[PostgresStore]:
    """A run with many entries, of which the planner has never heard."""
    with connections[POSTGRES].cursor() as cursor:
        for table in ("durable_entry", "durable_entrymetadata"):
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
            cursor.execute(f"TRUNCATE {table} CASCADE")
        for number in range(3):
            held = started(postgres_store, f"small-{number}")
            commit(postgres_store, held, entries=[an_entry(f"{each}") for each in range(2)])
        cursor.execute("ANALYZE durable_entry, durable_entrymetadata")
        postgres_store.create([a_run("large")])
        cursor.execute(
            "INSERT INTO durable_entry (run_id, location, kind, ordinal, data) "
            "SELECT 'large', 'step-' || n, 'step', n, '{}' FROM generate_series(1, %s) AS n",
            [MANY],
        )
        cursor.execute(
            "INSERT INTO durable_entrymetadata (entry_id, status, attempts, created_at) "
            "SELECT id, CASE WHEN ordinal % 1000 = 0 THEN 'failed' ELSE 'completed' END, 1, now() "
            "FROM durable_entry WHERE run_id = 'large'"
        )
        yield postgres_store
        for table in ("durable_entry", "durable_entrymetadata"):
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def plan_of(query: Any) -> dict[str, Any]:
    sql, parameters = query.query.sql_with_params()
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        [explained] = cursor.fetchone()
    plan: dict[str, Any] = (explained if isinstance(explained, list) else json.loads(explained))[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "open entries": lambda found: found.exclude(metadata__status=EntryStatus.COMPLETED.value).select_related(
        "metadata"
    ),
    "a history": lambda found: found.order_by("ordinal").values_list("id", "metadata__status", "metadata__attempts"),
    "failed ones": lambda found: found.filter(metadata__status="failed").select_related("metadata"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_metadata_is_looked_up_by_its_entry_alone(stale: PostgresStore, name: str) -> None:
    query = QUESTIONS[name](Entry.objects.using(POSTGRES).with_metadata_of("large"))
    read = [node for node in nodes(plan_of(query)) if node.get("Relation Name") == "durable_entrymetadata"]
    assert [node["Node Type"] for node in read] == ["Index Scan"]
    [node] = read
    assert "entry_id = durable_entry.id" in node["Index Cond"]
    assert "ANY" not in json.dumps(node), "an array of all keys would be searched for each entry"


def test_open_entries_are_found_among_many(stale: PostgresStore) -> None:
    found = QUESTIONS["open entries"](Entry.objects.using(POSTGRES).with_metadata_of("large"))
    assert len(found) == MANY // 1000
