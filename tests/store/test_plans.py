"""PostgreSQL compiles no statement of the store, and plans well with statistics that are older than the rows.

A function that switches off ways of planning has estimates of millions where no other way is left: PostgreSQL before 18
adds a high price to each. They are above `jit_above_cost`, and a claim would spend 250 ms on a compilation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from durable.core import transitions
from durable.core.errors import ErrorInfo
from durable.core.limits.ranks import Ranking
from durable.core.records import EntryStatus, RunRecord
from durable.models import Entry
from durable.store.postgres import PostgresStore
from durable.store.routines.operations import ROUTINES, Function
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_failure, a_new_run, a_run, an_entry, commit, park, started
from tests.support.databases import migrated
from tests.support.plans import parts_of

OLDEST = "store_oldest"


@pytest.fixture(scope="module")
def oldest_store(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, oldest_postgres_server: EmbeddedPostgres
) -> Iterator[PostgresStore]:
    """A store on the oldest PostgreSQL with its default settings."""
    config = database_from(oldest_postgres_server.create_database("stores"))
    with django_db_blocker.unblock(), migrated(OLDEST, {**config, "CONN_HEALTH_CHECKS": False}):
        yield PostgresStore(OLDEST)


@pytest.fixture
def plans(oldest_store: PostgresStore) -> list[str]:
    """The plan of each statement that the session executes from now on, in functions too."""
    found: list[str] = []
    with connections[OLDEST].cursor() as cursor:
        cursor.execute("LOAD 'auto_explain'")
        for setting, value in {"log_min_duration": "0", "log_nested_statements": "on", "log_analyze": "on"}.items():
            cursor.execute(f"SET auto_explain.{setting} TO {value}")
        cursor.execute("SET auto_explain.log_level TO notice")
    session: psycopg.Connection = connections[OLDEST].connection
    session.add_notice_handler(lambda notice: found.append(notice.message_primary or ""))
    return found


def test_a_function_that_changes_how_plans_are_made_compiles_nothing() -> None:
    changing = [
        each
        for each in ROUTINES.values()
        if isinstance(each, Function) and any(setting.startswith("enable_") for setting in each.settings)
    ]
    assert len(changing) > 20
    assert [each.name for each in changing if "jit=off" not in each.settings] == []


@pytest.mark.slow
def test_a_claim_of_a_queue_with_a_ranked_run_compiles_nothing_on_the_oldest_postgresql(
    oldest_store: PostgresStore, plans: list[str]
) -> None:
    ranked = a_new_run("ranked", ranking=Ranking(priority="high", head_start=600))
    oldest_store.create([ranked])
    oldest_store.create([a_new_run("plain")])
    found = oldest_store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    assert [run.id for run in found] == ["ranked", "plain"]
    assert any("durable_lane" in plan for plan in plans)  # the statements inside the function are told too
    assert [plan for plan in plans if "JIT:" in plan] == []


@pytest.mark.slow
def test_short_histories_are_loaded_without_compilation_where_others_are_long(
    oldest_store: PostgresStore, plans: list[str]
) -> None:
    held = started(oldest_store, "long")
    for number in range(20):
        commit(oldest_store, held, entries=[an_entry(f"{number}-{each}") for each in range(1000)])
    short = [started(oldest_store, f"short-{number}").id for number in range(10)]
    with connections[OLDEST].cursor() as cursor:
        cursor.execute("ANALYZE durable_entry, durable_entrymetadata")
    plans.clear()
    assert oldest_store.load_short(["long", *short], 100, 100_000) == {each: [] for each in short}
    assert len(plans) == 1
    assert [plan for plan in plans if "JIT:" in plan] == []


# -- what PostgreSQL knows of its tables may be older than nearly all their rows: after a restore, before an ANALYZE


MANY = 50_000


def first_step(store: PostgresStore, held: RunRecord) -> None:
    commit(store, held, entries=[an_entry("a")])


def first_steps(store: PostgresStore, held: RunRecord) -> None:
    commit(store, held, entries=[an_entry("a"), an_entry("b")])


def end_without_a_step(store: PostgresStore, held: RunRecord) -> None:
    commit(store, held, run=transitions.completed(held, now=NOW, output="1"))


def wait_without_a_step(store: PostgresStore, held: RunRecord) -> None:
    park(store, held, waiting_for="/mail/")


def failure(store: PostgresStore, held: RunRecord) -> None:
    patch = transitions.failed(held, now=NOW, error=ErrorInfo("E", "no"), origins=[])
    commit(store, held, run=patch, failure=a_failure(held.id))


@pytest.mark.parametrize("write", [first_step, first_steps, end_without_a_step, wait_without_a_step, failure])
def test_the_functions_of_commits_without_a_witness_are_planned_once(
    postgres_store: PostgresStore, write: Callable[[PostgresStore, RunRecord], None]
) -> None:
    runs = [started(postgres_store, run_id) for run_id in ids_of_one_part()]
    for held in runs[:8]:  # PostgreSQL tries five plans before it may keep one
        write(postgres_store, held)
    with planned_in_functions(POSTGRES) as found:
        for held in runs[8:]:
            write(postgres_store, held)
    if (
        len(parts_of(POSTGRES, "durable_run")) > 1
    ):  # a foreign key to a table in partitions is looked up by a plan for each
        found = [each for each in found if "OPERATOR(pg_catalog.=)" not in each]
    assert found == []


def ids_of_one_part() -> list[str]:
    """Twelve ids of runs that are in the same partition: a session plans what triggers do for each partition."""
    into = len(parts_of(POSTGRES, "durable_run"))
    where = "" if into == 1 else f" WHERE satisfies_hash_partition('durable_run'::regclass, {into}, 0, id::varchar)"
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM (SELECT 'run ' || n FROM generate_series(1, 1000) AS n) AS runs(id){where} LIMIT 12"
        )
        return [run_id for (run_id,) in cursor.fetchall()]


@contextmanager
def planned_in_functions(alias: str) -> Iterator[list[str]]:
    """The statements of functions that the session plans inside."""
    found: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        if "PLANNER STATISTICS" in (notice.message_primary or "") and notice.context:
            found.append(notice.context)

    with connections[alias].cursor() as cursor:
        cursor.execute("SET log_planner_stats TO on; SET client_min_messages TO log")
        session: psycopg.Connection = connections[alias].connection
        session.add_notice_handler(note)
        try:
            yield found
        finally:
            session.remove_notice_handler(note)
            cursor.execute("RESET log_planner_stats; RESET client_min_messages")


@pytest.fixture
def stale(postgres_store: PostgresStore) -> Iterator[PostgresStore]:
    """A run with many entries, of which the planner has never heard."""
    with connections[POSTGRES].cursor() as cursor:
        for table in ("durable_entry", "durable_entrymetadata"):
            for part in parts_of(POSTGRES, table):
                cursor.execute(f"ALTER TABLE {part} SET (autovacuum_enabled = false)")
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
            for part in parts_of(POSTGRES, table):
                cursor.execute(f"ALTER TABLE {part} RESET (autovacuum_enabled)")


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
