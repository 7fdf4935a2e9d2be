"""The functions of the PostgreSQL store: they know every column, exist however tables are made, and answer alike on
every way to them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction
from django.db.models.signals import post_migrate
from django.test.utils import CaptureQueriesContext

from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo
from durable.core.location import child_token
from durable.core.records import RunRecord, RunState
from durable.store import Store
from durable.store.postgres import PostgresStore, libpq, sql_functions
from durable.store.postgres.libpq import SQLFunction
from durable.store.routines.operations import Function, read
from durable.store.tables.rows import ENTRY, METADATA
from tests.store.children import a_child, finish, start_children
from tests.store.conftest import POSTGRES, SQLITE
from tests.store.making import NOW, a_message, a_run, an_entry, at, claimed, commit, park, rows_read, sent, started, the

NAMES = (
    "durable_claim_3",
    "durable_claim_4",
    "durable_claim_ranked_1",
    "durable_rank_1",
    "durable_rank_child_1",
    "durable_tag_1",
    "durable_start_2",
    "durable_start_carried_1",
    "durable_witness_1",
    "durable_record_1",
    "durable_flush_1",
    "durable_send_1",
    "durable_sends_1",
    "durable_commit_1",
    "durable_complete_1",
    "durable_fail_2",
)

#: Triggers that look at the row they are given alone.
WITHOUT_STATEMENTS = ("durable_entry_guard_4", "durable_metadata_guard_1", "durable_run_guard_1")

#: A value for every column that a patch may have, other than that of a run in the hands of a worker.
CHANGED: dict[str, Any] = {
    "queue": "other",
    "state": RunState.ROLLING_BACK,
    "output": '"out"',
    "error": ErrorInfo("E", "m\x00", "t"),
    "origins": ["a", "b"],
    "wake_at": at(77),
    "waiting_for": "/a/",
    "summary": "s\x1a",
    "fence": 99,
    "lease_expires_at": at(78),
    "worker": "other",
    "crashes": 3,
    "change_seq": 7,
    "pending_request": "pause",
    "request_reason": "why",
    "state_after_rollback": RunState.FAILED,
    "diverged_at": at(79),
    "generations": {"a": 2},
    "started_at": at(80),
}


def columns_of(name: str, column: str) -> Any:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM pg_proc WHERE proname = %s", [name])
        found = cursor.fetchone()
    return found and found[0]


def test_the_function_that_writes_entries_knows_every_column(postgres_store: PostgresStore) -> None:
    body = columns_of("durable_flush_1", "prosrc")
    for columns in (ENTRY, METADATA):
        assert all(f"{name} {columns.types[name]}" in body for name in columns.names)
        updated = [name for name in columns.names if name != "location"]
        assert all(f"{name} = EXCLUDED.{name}" in body for name in updated)


def test_the_function_that_writes_one_entry_takes_every_column_in_order(postgres_store: PostgresStore) -> None:
    given = columns_of("durable_record_1", "proargnames")
    assert given[2:-2] == [f"new_{name}" for name in (*ENTRY.names, *METADATA.names)]
    body = columns_of("durable_record_1", "prosrc")
    assert all(f"{name} = new_{name}" in body for name in (*ENTRY.names[1:], *METADATA.names) if name != "location")


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_a_patch_writes_its_column_and_no_other(store: Store, name: str) -> None:
    held = started(store)
    commit(store, held, run={name: CHANGED[name]})
    assert the(store) == replace(held, **{name: CHANGED[name]})


def test_every_column_of_a_patch_is_known() -> None:
    assert CHANGED.keys() | {"finished_at"} == sql_functions.PATCHED  # that one cannot change alone


def test_a_column_that_no_patch_may_have_is_refused_before_anything_is_written(postgres_store: PostgresStore) -> None:
    held = started(postgres_store)
    with pytest.raises(AssertionError, match="input"):
        commit(postgres_store, held, entries=[an_entry()], run={"input": "[]"})
    assert postgres_store.load("run") == []


def test_a_plan_made_while_tables_are_small_never_scans_them_when_they_are_large(postgres_store: PostgresStore) -> None:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT proname, provolatile, proconfig FROM pg_proc WHERE proname LIKE 'durable\\_%%' ORDER BY 1"
        )
        found = {name: (volatile, settings) for name, volatile, settings in cursor.fetchall()}
    assert set(NAMES) <= found.keys()
    unset = {name for name, (_, settings) in found.items() if "enable_seqscan=off" not in (settings or [])}
    assert unset == set(WITHOUT_STATEMENTS)
    in_order = ["enable_seqscan=off", "jit=off", "enable_bitmapscan=off", "enable_sort=off"]
    assert found["durable_claim_3"][1] == found["durable_claim_ranked_1"][1] == in_order
    assert {volatile for volatile, _ in found.values()} == {"v"}


def test_a_new_run_is_created_by_the_function_and_a_special_one_by_a_statement(postgres_store: PostgresStore) -> None:
    usual, special = a_run("a", parent_id=None), a_run("b", summary="planted")
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        assert postgres_store.create([usual]) == [(usual, True)]
        assert postgres_store.create([special]) == [(special, True)]
    assert ["durable_start_2" in each["sql"] for each in captured.captured_queries] == [True, False]
    assert (the(postgres_store, "a"), the(postgres_store, "b")) == (usual, special)


def test_a_run_that_carries_something_is_created_by_a_function_too(postgres_store: PostgresStore) -> None:
    alone, keyed = (a_run(each, parent_id=None, carried='{"tenant":"a\\u0000ä"}') for each in ("a", "b"))
    other = a_run("c", parent_id=None, carried='{"tenant":"other"}')
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        assert postgres_store.create([alone]) == [(alone, True)]
        assert postgres_store.start_keyed(keyed, "k") == (keyed, True)
        assert postgres_store.start_keyed(other, "k") == (keyed, False)
        assert postgres_store.create([replace(alone, carried=None)]) == [(alone, False)]
    assert sum("durable_start_carried_1" in each["sql"] for each in captured.captured_queries) == 3
    assert (the(postgres_store, "a"), the(postgres_store, "b")) == (alone, keyed)
    assert postgres_store.get("c") is None


COMPLETION: dict[str, Any] = {
    "state": RunState.COMPLETED,
    "output": '"ä\x00"',
    "error": None,
    "origins": [],
    "wake_at": None,
    "waiting_for": "",
    "summary": "",
    "lease_expires_at": None,
    "worker": "",
    "pending_request": "",
    "diverged_at": None,
    "finished_at": at(5),
}


@pytest.mark.parametrize(
    ("other", "is_usual"),
    [({}, True), ({"summary": "why"}, False), ({"crashes": 1}, False), ({"state": RunState.FAILED}, False)],
)
def test_a_usual_completion_is_written_by_its_own_function_and_is_the_same(
    postgres_store: PostgresStore, other: dict[str, Any], is_usual: bool
) -> None:
    before = {name: value for name, value in CHANGED.items() if name in COMPLETION and name != "state"}
    held = started(postgres_store)
    commit(postgres_store, held, run=before)
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        with pytest.raises(LeaseLost):
            commit(postgres_store, held, fence=held.fence - 1, run={**COMPLETION, **other})
        commit(postgres_store, held, run={**COMPLETION, **other})
    assert ["durable_complete_1" in each["sql"] for each in captured.captured_queries] == [is_usual] * 2
    assert the(postgres_store) == replace(held, **{**COMPLETION, **other})


def test_the_usual_completion_of_a_child_is_written_by_its_own_function_and_is_the_same(
    postgres_store: PostgresStore,
) -> None:
    parent = started(postgres_store, "parent")
    start_children(postgres_store, parent, a_child("run"))
    park(postgres_store, parent, waiting_for=f"/{child_token('run')}/")
    held = claimed(postgres_store, "run")
    with CaptureQueriesContext(connections[POSTGRES]) as captured:
        with pytest.raises(LeaseLost):
            commit(postgres_store, held, fence=held.fence - 1, run=COMPLETION, parent_id="parent")
        committed = commit(postgres_store, held, run=COMPLETION, parent_id="parent")
    assert ["durable_complete_2" in each["sql"] for each in captured.captured_queries] == [True] * 2
    assert the(postgres_store) == replace(held, **COMPLETION)
    assert committed.queues_to_notify == {parent.queue}


def test_a_claim_that_was_planned_on_a_few_runs_reads_as_few_of_many(postgres_store: PostgresStore) -> None:
    """A new installation has its worker first and its runs then, and its statistics are of the empty tables."""
    claiming: dict[str, Any] = {"queue": "q", "now": at(0), "lease_until": at(99), "worker": "w", "limit": 10}
    postgres_store.create([a_run("first")])
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("ANALYZE durable_run")
    for number in range(12):  # as often as PostgreSQL plans anew
        postgres_store.create([a_run(f"first-{number}")])
        assert postgres_store.claim(**claiming)
    postgres_store.create([a_run(f"many-{number}", summary="planted") for number in range(2000)])
    with transaction.atomic(using=POSTGRES):
        before = rows_read(POSTGRES)
        assert len(postgres_store.claim(**claiming)) == 10
        assert rows_read(POSTGRES) - before < 100


def everything(store: Store) -> list[object]:
    """Use each function once; what came of it, but for what is drawn at random."""
    held = started(store)
    found: list[object] = [store.create([a_run("a\x7f")]), commit(store, held, entries=[an_entry("ä\x00")])]
    found += [commit(store, held, entries=[an_entry("b"), an_entry("c")])]
    message = sent(store, a_message(idempotency_id="x"))
    found += [message.order, store.send([a_message(idempotency_id="x"), a_message("none")])[0][0] == message]
    found += [park(store, held, waiting_for="*"), replace(the(store), fence=0)]
    found += [replace(entry, ordinal=0) for entry in store.history("run")]
    claimed = store.claim(queue="q", now=at(9), lease_until=at(99), worker="w", limit=9)
    found += [replace(run, fence=0) for run in claimed]
    with pytest.raises(LeaseLost):
        commit(store, held, fence=held.fence + 9, entries=[an_entry()])
    return found


def test_observed_or_not_or_in_a_transaction_the_answers_are_the_same(postgres_store: PostgresStore) -> None:
    plain = everything(postgres_store)
    for number in range(2):
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute("TRUNCATE durable_run CASCADE")
        with CaptureQueriesContext(connections[POSTGRES]) if number else transaction.atomic(using=POSTGRES):
            assert everything(postgres_store) == plain


def prepared() -> set[str]:
    """The functions whose calls the session has prepared."""
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(
            "SELECT substring(statement FROM 'durable_[a-z_0-9]+') FROM pg_prepared_statements WHERE name LIKE 'durable%'"
        )
        return {name for (name,) in cursor.fetchall()}


def write_often(store: PostgresStore, held: RunRecord, name: object) -> None:
    """Call two functions so often that it pays to prepare them."""
    for number in range(8):
        commit(store, held, entries=[an_entry(f"{name}-{number}")])
        commit(store, held, entries=[an_entry(f"{name}-{number}-{each}") for each in "ab"])


@pytest.fixture
def _nothing_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database has lost a statement yet, nor has the session of other tests any."""
    connections[POSTGRES].close()
    monkeypatch.setattr(libpq, "_unnamed", set())
    monkeypatch.setattr(libpq, "_unreported", set())


@pytest.mark.usefixtures("_nothing_lost")
def test_statements_are_prepared_where_the_settings_allow_it_and_may_be_forgotten(
    postgres_store: PostgresStore, settings: Any
) -> None:
    held = started(postgres_store)
    for is_allowed, expected in [(False, set()), (True, {"durable_record_1", "durable_flush_1"})]:
        settings.DURABLE = {"PREPARED_STATEMENTS": is_allowed}
        write_often(postgres_store, held, is_allowed)
        assert prepared() == expected
    for forget in ("DEALLOCATE ALL", "DISCARD ALL"):
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute(forget)
        write_often(postgres_store, held, forget)
        assert prepared() == expected
    with pytest.raises(LeaseLost):
        commit(postgres_store, held, fence=held.fence + 9, entries=[an_entry()])
    with pytest.raises(IntegrityError, match="durable_entry_kind_is_known"):
        commit(postgres_store, held, entries=[an_entry(kind="dance")])
    assert len(postgres_store.load("run")) == 4 * 8 * 3


@pytest.mark.usefixtures("_nothing_lost")
def test_by_default_statements_are_prepared_until_one_is_lost(
    postgres_store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    held = started(postgres_store)
    write_often(postgres_store, held, "first")
    assert prepared() == {"durable_record_1", "durable_flush_1"}
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("DISCARD ALL")
    write_often(postgres_store, held, "second")
    assert prepared() == set()
    connections[POSTGRES].close()  # a new session may be another client's as well
    write_often(postgres_store, held, "third")
    assert prepared() == set()
    assert [each.name for each in caplog.records if "prepared statements" in each.getMessage()] == ["durable.store"]
    assert len(postgres_store.load("run")) == 3 * 8 * 3


@pytest.mark.usefixtures("_nothing_lost")
def test_a_handler_of_logs_may_use_the_connection_whose_statement_is_lost(postgres_store: PostgresStore) -> None:
    seen: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            is_locked = connections[POSTGRES].connection.lock.locked()
            seen.append(is_locked)
            if not is_locked:  # else the next line would wait for ever
                connections[POSTGRES].cursor().execute("SELECT 1")

    held, handler = started(postgres_store), Handler()
    write_often(postgres_store, held, "first")
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    libpq.logger.addHandler(handler)
    try:
        write_often(postgres_store, held, "second")
    finally:
        libpq.logger.removeHandler(handler)
    assert seen == [False]


@pytest.mark.usefixtures("_nothing_lost")
def test_a_session_in_which_another_client_has_prepared_a_statement_is_taken_for_shared(
    postgres_store: PostgresStore,
) -> None:
    held = started(postgres_store)
    write_often(postgres_store, held, "first")
    del vars(connections[POSTGRES].connection)["_durable_calls"]  # as if another client had prepared them
    write_often(postgres_store, held, "second")
    assert libpq._unnamed == {POSTGRES}
    assert len(postgres_store.load("run")) == 2 * 8 * 3


def test_a_statement_of_another_release_is_another_statement() -> None:
    old, new = SQLFunction("durable_f", ["text"]), SQLFunction("durable_f", ["text", "text"])
    assert old.prepared_name != new.prepared_name
    assert old.prepared_name == SQLFunction("durable_f", ["text"]).prepared_name
    assert len(old.prepared_name) < 63  # PostgreSQL cuts longer names


def test_a_session_out_of_a_pool_knows_what_another_thread_has_prepared(
    postgres_store: PostgresStore, settings: Any
) -> None:
    settings.DURABLE = {"PREPARED_STATEMENTS": True}
    held = started(postgres_store)
    for user in range(2):  # of one session after the other
        for number in range(8):
            commit(postgres_store, held, entries=[an_entry(f"{user}-{number}")])
        assert prepared() >= {"durable_record_1"}
        session, timezone = connections[POSTGRES].connection, connections[POSTGRES].timezone
        connections[POSTGRES].connection = None
        del connections[POSTGRES]
        connections[POSTGRES].connection = session
        vars(connections[POSTGRES]).update(autocommit=True, timezone=timezone)
    assert len(postgres_store.load("run")) == 16


def test_what_the_database_refuses_is_raised_as_django_says_and_the_connection_goes_on(
    postgres_store: PostgresStore,
) -> None:
    held = started(postgres_store)
    with pytest.raises(IntegrityError, match="durable_run_state_is_known"):
        commit(postgres_store, held, run={"state": "dreaming"})
    with pytest.raises(IntegrityError, match="durable_entry_kind_is_known"):
        commit(postgres_store, held, entries=[an_entry(kind="dance")])
    commit(postgres_store, held, entries=[an_entry()])
    assert len(postgres_store.load("run")) == 1


def test_async_code_is_refused_as_by_djangos_cursor(postgres_store: PostgresStore) -> None:
    held = started(postgres_store)

    async def write() -> None:
        commit(postgres_store, held, entries=[an_entry()])

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(write())


def test_without_migrations_the_functions_are_made_after_the_tables(
    postgres_store: PostgresStore, settings: Any
) -> None:
    held = started(postgres_store)
    with transaction.atomic(using=POSTGRES):
        with connections[POSTGRES].cursor() as cursor:
            for name in NAMES:
                cursor.execute(f"DROP FUNCTION {name}")
        settings.MIGRATION_MODULES = {"durable": None}
        for _ in range(2):  # the second time there is nothing to do
            _tell_of_tables(POSTGRES)
        commit(postgres_store, held, entries=[an_entry()], run={"summary": "x"})
        assert the(postgres_store).summary == "x"
        transaction.set_rollback(True, using=POSTGRES)


def test_without_migrations_ends_have_what_follows_from_them(postgres_store: PostgresStore, settings: Any) -> None:
    with transaction.atomic(using=POSTGRES):
        with connections[POSTGRES].cursor() as cursor:
            for each in chain.from_iterable(map(read, ("keys", "slots", "ending", "groups"))):
                if isinstance(each, Function):
                    cursor.execute(f"DROP FUNCTION {each.signature} CASCADE")
        settings.MIGRATION_MODULES = {"durable": None}
        for _ in range(2):
            _tell_of_tables(POSTGRES)
        held = started(postgres_store, "parent")
        start_children(postgres_store, held, a_child("child"))
        park(postgres_store, held, waiting_for="/~child/", batch={"awaited_children": ["child"]})
        assert the(postgres_store, "parent").wake_at is None
        finish(postgres_store, "child")
        assert the(postgres_store, "parent").wake_at == NOW
        transaction.set_rollback(True, using=POSTGRES)


def _tell_of_tables(alias: str) -> None:
    from django.apps import apps

    config = apps.get_app_config("durable")
    post_migrate.send(sender=config, app_config=config, verbosity=0, interactive=False, using=alias)


@pytest.mark.parametrize("alias", [POSTGRES, SQLITE])
def test_migrations_take_the_functions_back_and_bring_them_again(
    postgres_store: PostgresStore, sqlite_alias: str, alias: str
) -> None:
    call_command("migrate", "durable", "0001", database=alias, verbosity=0)
    try:
        if alias == POSTGRES:
            assert [each for each in NAMES if columns_of(each, "proname")] == []
    finally:
        call_command("migrate", "durable", database=alias, verbosity=0)
    commit(postgres_store, started(postgres_store), entries=[an_entry()], now=NOW)
    assert len(postgres_store.load("run")) == 1
