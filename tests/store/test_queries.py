"""How many statements each thing costs on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.conftest import POSTGRES
from tests.store.making import (
    LEASE,
    NOW,
    a_full_entry,
    a_message,
    a_run,
    an_attempt,
    an_entry,
    at,
    commit,
    parked,
    sent,
    started,
    the,
)
from tests.support.plans import parts_of

pytestmark = pytest.mark.slow


@contextmanager
def queries(count: int, alias: str = POSTGRES) -> Iterator[None]:
    with CaptureQueriesContext(connections[alias]) as captured:
        yield
    assert len(captured) == count, [query["sql"] for query in captured.captured_queries]


def big_batch(store: Store) -> dict[str, Any]:
    message = sent(store, a_message())
    return {
        "entries": [an_entry("a"), an_entry("b")],
        "deleted": ["c"],
        "attempts": [an_attempt("a")],
        "received": [(message.id, "a")],
        "completed": [(message.id, "1")],
        "sends": [a_message("run"), a_message("other"), a_message("none")],
        "run": {"summary": "x", "wake_at": None},
        "park_change_seq": 0,
    }


def test_a_commit_is_one_statement_whatever_is_in_it(postgres_store: PostgresStore) -> None:
    held = started(postgres_store)
    started(postgres_store, "other")
    batch = big_batch(postgres_store)
    for parts in ({}, {"entries": [an_entry()]}, {"entries": [an_entry("a"), an_entry("b")]}, batch):
        with queries(1):
            commit(postgres_store, held, **parts)


def test_the_verbs_of_a_pass_are_one_statement_each(postgres_store: PostgresStore) -> None:
    store = postgres_store
    store.create([a_run(f"{n}") for n in range(20)])
    with queries(1):
        claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    held = [(run.id, run.fence) for run in claimed]
    with queries(1):
        store.renew(held, at(99))
    with queries(1):
        store.release(held, NOW)
    with queries(1):
        store.claim_run("1", now=NOW, lease_until=NOW + LEASE, worker="w")
    with queries(1):
        store.inbox("1", ["a"], 1, NOW)
    with queries(1):
        store.next_deadline(["q"], NOW)
    with queries(1):
        store.due_queues(NOW)


def test_a_send_is_one_statement_for_any_number_of_messages(postgres_store: PostgresStore) -> None:
    postgres_store.create([a_run("a"), a_run("b")])
    with queries(1):
        postgres_store.send([a_message("a", idempotency_id="x"), a_message("b"), a_message("a"), a_message("none")])


def test_creating_is_one_statement_and_one_more_for_taken_ids(postgres_store: PostgresStore) -> None:
    with queries(1):
        postgres_store.create([a_run(f"{n}") for n in range(500)])
    with queries(2):
        postgres_store.create([a_run(f"{n}") for n in range(498, 502)])


def test_a_change_is_a_transaction_of_two_statements(postgres_store: PostgresStore) -> None:
    from durable.core.records import RunChange

    started(postgres_store)
    with queries(4):  # BEGIN and COMMIT are counted
        postgres_store.change("run", lambda run, entries: RunChange(run={"summary": "x"}, entries=[an_entry()]))


@pytest.mark.parametrize("verb", ["load", "history"])
def test_ten_thousand_entries_are_one_query(database_store: SQLiteStore | PostgresStore, verb: str) -> None:
    held = started(database_store)
    entries = [a_full_entry(f"loop/~{n}/step", f"{n}") for n in range(10_000)]
    commit(database_store, held, entries=entries)
    with queries(1, database_store.alias):
        loaded = getattr(database_store, verb)("run")
    assert {entry.location: entry for entry in loaded} == {entry.location: entry for entry in entries}


def test_a_flush_without_a_patch_leaves_the_runs_row_unwritten(postgres_store: PostgresStore) -> None:
    held = started(postgres_store)

    def version() -> object:
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute("SELECT ctid::text, xmin::text FROM durable_run")
            return cursor.fetchone()

    before = version()
    commit(postgres_store, held, entries=[an_entry()], attempts=[an_attempt()])
    assert version() == before


@pytest.mark.usefixtures("new_tables")
def test_deadlines_and_due_queues_use_the_index_of_due_runs(postgres_store: PostgresStore) -> None:
    from durable.store.postgres import sql

    postgres_store.create([a_run(f"{n}", wake_at=NOW + timedelta(seconds=n)) for n in range(5000)])
    parked(postgres_store, waiting_for="*")
    asked: dict[str, Any] = {"queues": ["q"], "now": NOW, "after": NOW, "since": None, "until": None}
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("ANALYZE durable_run")
        for statement in (
            sql.NEXT_DEADLINE,
            sql.DUE_QUEUES,
            sql.DUE_QUEUES_OF,
        ):
            cursor.execute(f"EXPLAIN {statement}", asked)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert all(index in plan for index in parts_of(POSTGRES, "durable_run_due")), plan
    assert the(postgres_store).wake_at is None
