"""Every method is atomic, and part of the caller's transaction; and sessions that lead to a standby."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
from django.db import InternalError, OperationalError, ProgrammingError, connections, transaction
from django.test.utils import CaptureQueriesContext

from durable.core.control_flow import LeaseLost
from durable.core.errors import CriticalError
from durable.core.records import RunChange, RunRecord
from durable.store import Store, store_for
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from durable.store.transactions import kept_open
from tests.store.conftest import POSTGRES, SQLITE
from tests.store.making import LEASE, NOW, a_message, a_run, an_entry, commit, sent, started, the


def fail(store: Store, held: RunRecord, location: str) -> None:
    """Write in a transaction of its own, and fail there."""
    with store.transaction():
        commit(store, held, entries=[an_entry(location)])
        raise ZeroDivisionError


def write_all(store: Store, held: RunRecord) -> None:
    """Use every writing method in a transaction, and fail there."""
    with store.transaction():
        store.create([a_run("new")])
        sent(store, a_message())
        commit(store, held, entries=[an_entry()], run={"summary": "x"})
        store.change("run", lambda run, entries: RunChange(run={"summary": "y"}))
        store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=9)
        raise ZeroDivisionError


def write_late(store: Store, held: RunRecord) -> None:
    """What an atomic step does whose worker has lost the run."""
    with store.transaction():
        store.create([a_run("the step's own writing")])
        commit(store, held, fence=held.fence + 1, entries=[an_entry()])


def test_what_was_written_in_a_transaction_that_fails_did_not_happen(store: Store) -> None:
    held = started(store)
    before = the(store)
    with pytest.raises(ZeroDivisionError):
        write_all(store, held)
    assert the(store) == before
    assert store.get("new") is None
    assert store.load("run") == []
    assert store.messages("run") == []


def test_what_was_written_in_a_transaction_is_seen_in_it_and_after_it(store: Store) -> None:
    held = started(store)
    with store.transaction():
        entry = an_entry()
        commit(store, held, entries=[entry])
        assert store.load("run") == [entry]
    assert store.load("run") == [entry]


def test_a_transaction_inside_a_transaction_fails_alone(store: Store) -> None:
    held = started(store)
    with store.transaction():
        commit(store, held, entries=[an_entry("a")])
        with pytest.raises(ZeroDivisionError):
            fail(store, held, "b")
    assert [entry.location for entry in store.load("run")] == ["a"]


def test_a_lost_lease_undoes_the_writes_of_an_atomic_step(store: Store) -> None:
    held = started(store)
    with pytest.raises(LeaseLost):
        write_late(store, held)
    assert store.get("the step's own writing") is None


@pytest.mark.parametrize("statements", [["COMMIT"], ["COMMIT", "BEGIN"]], ids=" and ".join)
def test_a_function_that_ends_the_transaction_is_noticed(database_store: Any, statements: list[str]) -> None:
    alias = database_store.alias

    def step() -> None:
        with transaction.atomic(using=alias), kept_open(alias), connections[alias].cursor() as cursor:
            for each in statements:
                cursor.execute(each)

    with pytest.raises(CriticalError, match="ended the transaction"):
        step()


def test_a_create_that_finds_its_id_taken_leaves_the_callers_transaction_usable(store: Store) -> None:
    started(store)
    with store.transaction():
        assert [new for _, new in store.create([a_run("run"), a_run("new")])] == [False, True]
        store.create([a_run("another")])
    assert store.get("new") is not None
    assert store.get("another") is not None


def test_the_alias_decides_the_store(sqlite_alias: str, postgres_alias: str) -> None:
    assert isinstance(store_for(SQLITE), SQLiteStore)
    assert isinstance(store_for(POSTGRES), PostgresStore)
    assert store_for(POSTGRES) is store_for(POSTGRES)


def test_a_lost_connection_is_raised_as_the_driver_says(postgres_store: PostgresStore) -> None:
    held = started(postgres_store)
    connection = connections[postgres_store.alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    other.close()
    with pytest.raises(OperationalError):
        commit(postgres_store, held, entries=[an_entry()])
    connection.close()
    commit(postgres_store, held, entries=[an_entry()])


def test_nothing_is_left_in_the_session(postgres_store: PostgresStore, settings: Any) -> None:
    """A pooler in transaction mode may give each statement to another session."""
    settings.DURABLE = {"PREPARED_STATEMENTS": False}
    connections[POSTGRES].close()
    held = started(postgres_store)
    for n in range(20):
        commit(postgres_store, held, entries=[an_entry(f"{n}")])
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)


def test_statements_work_with_server_side_binding(postgres_store: PostgresStore) -> None:
    config = {**connections.databases[POSTGRES]}
    config["OPTIONS"] = {**config.get("OPTIONS", {}), "server_side_binding": True}
    connections.databases["store_bound"] = config
    try:
        store = PostgresStore("store_bound")
        held = started(store)
        started(store, "other")
        message = sent(store, a_message())
        with transaction.atomic(using="store_bound"):
            commit(
                store,
                held,
                entries=[an_entry("a")],
                deleted=["x"],
                received=[(message.id, "a")],
                sends=[a_message("other"), a_message("run")],
                run={"summary": "s", "wake_at": None, "output": None},
                park_change_seq=0,
            )
        commit(store, held, entries=[an_entry("b"), an_entry("c")])
        store.change("run", lambda run, entries: RunChange(run={"summary": "t"}, unreceive=["a"]))
        assert store.renew([("run", held.fence)], NOW + LEASE) == ({"run": ""}, frozenset())
        store.release([("run", held.fence)], NOW)
        assert store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=1)
        assert store.next_deadline(["q"], NOW) is None
        assert store.due_queues(NOW) == []
        assert len(store.inbox("run", ["mail"], 5, NOW + LEASE)) == 2
        assert len(store.load("run")) == 3
    finally:
        connections["store_bound"].close()
        del connections.databases["store_bound"]
        del connections["store_bound"]


# -- A switchover: sessions lead to a server that has become a standby, and refuses each write


CALLS: Final[dict[str, Callable[[PostgresStore], Any]]] = {
    "a start": lambda store: store.create([a_run("new")]),
    "starts": lambda store: store.create([a_run("new"), a_run("other")]),
    "a start with a key": lambda store: store.start_keyed(a_run("new"), "key"),
    "a message": lambda store: store.send([a_message()]),
    "messages": lambda store: store.send([a_message(), a_message()]),
    "a verb": lambda store: store.change("run", lambda _run, _entries: RunChange(run={"summary": "changed"})),
    "a claim": lambda store: store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=1),
    "a commit": lambda store: commit(store, the(store), entries=[an_entry()]),
}


@pytest.fixture
def demoted(postgres_store: PostgresStore) -> PostgresStore:
    """The store, whose session is read only, as on a server that has become a standby without cutting it."""
    connections[POSTGRES].close()
    started(postgres_store)
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only TO on")
    return postgres_store


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_the_session_is_closed_and_the_error_is_one_that_is_tried_again(
    demoted: PostgresStore, call: str, is_observed: bool
) -> None:
    observed = CaptureQueriesContext(connections[POSTGRES]) if is_observed else nullcontext()
    with observed, pytest.raises(OperationalError, match="Try again in a few seconds") as refused:
        CALLS[call](demoted)
    assert getattr(refused.value.__cause__, "sqlstate", None) == "25006"
    assert connections[POSTGRES].connection is None
    CALLS[call](demoted)


@pytest.mark.parametrize("call", CALLS)
def test_in_a_transaction_the_session_is_closed_with_it(demoted: PostgresStore, call: str) -> None:
    with pytest.raises(OperationalError, match="read only"), transaction.atomic(using=POSTGRES):
        CALLS[call](demoted)
    assert connections[POSTGRES].connection is None
    CALLS[call](demoted)


def test_a_transaction_that_is_read_only_on_purpose_keeps_its_session(postgres_store: PostgresStore) -> None:
    with transaction.atomic(using=POSTGRES):
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(OperationalError, match="read only"), transaction.atomic(using=POSTGRES):
            postgres_store.create([a_run("new")])
        assert postgres_store.get("new") is None
    connections[POSTGRES].close_if_unusable_or_obsolete()  # as Django does between two requests
    assert connections[POSTGRES].connection is None


def test_another_internal_error_stays_what_it_is(postgres_store: PostgresStore) -> None:
    def after_an_error() -> None:
        with transaction.atomic(using=POSTGRES):
            with pytest.raises(ProgrammingError, match="syntax"), connections[POSTGRES].cursor() as cursor:
                cursor.execute("nonsense")
            connections[POSTGRES].needs_rollback = False
            postgres_store.create([a_run("new")])

    with pytest.raises(InternalError, match="current transaction is aborted"):
        after_an_error()
    postgres_store.create([a_run("new")])
