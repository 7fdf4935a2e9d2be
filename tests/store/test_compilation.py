"""PostgreSQL compiles no statement of the store's functions (`jit`).

A function that switches off ways of planning has estimates of millions where no other way is left: PostgreSQL before 18
adds a high price to each. They are above `jit_above_cost`, and a claim would spend 250 ms on a compilation.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from durable.core.limits.ranks import Ranking
from durable.store.postgres import PostgresStore
from durable.store.routines.definitions import Function
from durable.store.routines.operations import ROUTINES
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.making import LEASE, NOW, a_new_run, an_entry, commit, started
from tests.support.databases import migrated

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


def test_a_claim_of_a_queue_with_a_ranked_run_compiles_nothing_on_the_oldest_postgresql(
    oldest_store: PostgresStore, plans: list[str]
) -> None:
    ranked = a_new_run("ranked", ranking=Ranking(priority="high", head_start=600))
    oldest_store.create([ranked])
    oldest_store.create([a_new_run("plain")])
    found = oldest_store.claim(queues=["q"], now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    assert [run.id for run in found] == ["ranked", "plain"]
    assert any("durable_lane" in plan for plan in plans)  # the statements inside the function are told too
    assert [plan for plan in plans if "JIT:" in plan] == []


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
