"""What the database refuses only at COMMIT: a deferred constraint, an audit's trigger, a serialization failure.

Every write of every store on a database raises the error, leaves nothing behind, and the connection goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg.errors import SerializationFailure

from durable.core.records import ActionRecord, Message, OutgoingMessage, RunChange, RunRecord, RunState
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.making import (
    NOW,
    a_message,
    a_run,
    an_attempt,
    an_entry,
    at,
    claimed,
    commit,
    park,
    parked,
    sent,
    started,
)
from tests.support.transitions import CALLS

DatabaseStore = SQLiteStore | PostgresStore
Prepare = Callable[[DatabaseStore], Callable[[], object]]
TABLES = (
    "durable_run",
    "durable_entry",
    "durable_entrymetadata",
    "durable_attempt",
    "durable_queuemessage",
    "durable_operatoraction",
)
EVENTS = ("INSERT", "UPDATE", "DELETE")


@contextmanager
def refusing_commits(alias: str) -> Iterator[None]:
    """Inside, each transaction that has written to a table of durable's fails at its COMMIT."""
    is_postgres = connections[alias].vendor == "postgresql"
    _execute(alias, *(_DEFERRED if is_postgres else _DANGLING))
    try:
        yield
    finally:
        _execute(alias, *(_UNDEFERRED if is_postgres else _UNDANGLING))


_DEFERRED = [
    """
    CREATE FUNCTION refuse_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE serialization_failure USING MESSAGE = 'refused at COMMIT';
    END $$
    """,
    *(
        f"CREATE CONSTRAINT TRIGGER refuse_commit AFTER {' OR '.join(EVENTS)} ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse_commit()"
        for table in TABLES
    ),
]
_UNDEFERRED = ["DROP FUNCTION refuse_commit() CASCADE"]

#: SQLite has no deferred triggers, but deferred keys: each write makes a row that refers to none.
_DANGLING = [
    "CREATE TABLE refused_commit (missing integer REFERENCES durable_entry (id) DEFERRABLE INITIALLY DEFERRED)",
    *(
        f"CREATE TRIGGER refuse_{event}_{table} AFTER {event} ON {table} BEGIN INSERT INTO refused_commit VALUES (-1); END"
        for table in TABLES
        for event in EVENTS
    ),
]
_UNDANGLING = [
    *(f"DROP TRIGGER refuse_{event}_{table}" for table in TABLES for event in EVENTS),
    "DROP TABLE refused_commit",
]


def _execute(alias: str, *statements: str) -> None:
    with connections[alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def contents(alias: str) -> dict[str, list[Any]]:
    """Every row of every table."""
    found = {}
    with connections[alias].cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")
            found[table] = cursor.fetchall()
    return found


def an_action(verb: str) -> ActionRecord:
    return ActionRecord(action=verb, run_id="run", source="code", outcome="done", created_at=NOW)


def complete_message(store: DatabaseStore) -> Callable[[], object]:
    held, message = started(store), sent(store, a_message())
    commit(store, held, entries=[an_entry("wait")], received=[(message.id, "wait")])
    return lambda: commit(store, held, completed=[(message.id, '"thanks"')])


def receive(store: DatabaseStore) -> Callable[[], object]:
    held, message = started(store), sent(store, a_message())
    return lambda: commit(store, held, entries=[an_entry("wait")], received=[(message.id, "wait")])


def rewrite(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    commit(store, held, entries=[an_entry("a", ordinal=1, output="1")])
    return lambda: commit(store, held, entries=[an_entry("a", ordinal=1, output="2")])


def everything(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    store.create([a_run("other")])
    commit(store, held, entries=[an_entry("gone")])
    whole: dict[str, Any] = {
        "entries": [an_entry("a")],
        "deleted": ["gone"],
        "attempts": [an_attempt()],
        "sends": [a_message("other")],
        "run": {"summary": "x"},
    }
    return lambda: commit(store, held, **whole)


def plant(store: DatabaseStore) -> Callable[[], object]:
    message = Message(id="planted", run_id="new", queue="mail", body='"hi"', sent_at=NOW, order=1)

    def write() -> None:
        with transaction.atomic(using=store.alias):
            store.create([a_run("new", wake_at=None)])
            store.import_history("new", entries=[an_entry("a")], attempts=[an_attempt()], messages=[message])

    return write


def atomic_step(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)

    def write() -> None:
        with store.transaction():
            commit(store, held, entries=[an_entry("atomic")])

    return write


def change(store: DatabaseStore) -> Callable[[], object]:
    parked(store)
    change = RunChange(run={"state": RunState.PAUSED}, entries=[an_entry("changed")], action=an_action("pause"))
    return lambda: store.change("run", lambda _run, _entries: change)


def sending(*messages: OutgoingMessage) -> Prepare:
    """The send of these messages to a run that waits for them."""

    def prepare(store: DatabaseStore) -> Callable[[], object]:
        parked(store, waiting_for="*")
        return lambda: store.send(list(messages))

    return prepare


def holding(write: Callable[[DatabaseStore, RunRecord], object]) -> Prepare:
    """A write of the worker that has the run."""
    return lambda store: partial(write, store, started(store))


def with_runs(write: Callable[[DatabaseStore], object], *ids: str) -> Prepare:
    """A write to a store with these new runs."""

    def prepare(store: DatabaseStore) -> Callable[[], object]:
        store.create([a_run(each) for each in ids])
        return partial(write, store)

    return prepare


#: Each makes what a write needs and returns the write, to be called in vain and then for good.
PATHS: dict[str, Prepare] = {
    "create one": with_runs(lambda store: store.create([a_run("new")])),
    "create many": with_runs(lambda store: store.create([a_run("new-1"), a_run("new-2")])),
    "create a special one": with_runs(lambda store: store.create([a_run("new", summary="planted")])),
    "send one": sending(a_message(idempotency_id="once")),
    "send many": sending(a_message(), a_message()),
    "change": change,
    "plant": plant,
    "log": with_runs(lambda store: store.log([an_action("start")])),
    "claim": with_runs(
        lambda store: store.claim(queue="q", now=NOW, lease_until=at(30), worker="w", limit=5), "a", "b"
    ),
    "claim one": with_runs(lambda store: claimed(store, "run"), "run"),
    "record": holding(lambda store, held: commit(store, held, entries=[an_entry()])),
    "flush": holding(lambda store, held: commit(store, held, entries=[an_entry("a"), an_entry("b")])),
    "rewrite": rewrite,
    "everything": everything,
    "receive": receive,
    "complete a message": complete_message,
    "park": holding(lambda store, held: park(store, held, wake_at=at(60))),
    "complete": holding(lambda store, held: commit(store, held, run=CALLS["completed"](held))),
    "renew": holding(lambda store, held: store.renew([(held.id, held.fence)], at(90))),
    "release": holding(lambda store, held: store.release([(held.id, held.fence)], at(1))),
    "atomic step": atomic_step,
}


@pytest.mark.parametrize("name", PATHS)
def test_what_fails_at_commit_is_raised_and_has_no_effect(database_store: DatabaseStore, name: str) -> None:
    attack(database_store, name)


@pytest.mark.parametrize("name", PATHS)
def test_the_same_where_the_session_keeps_statements(postgres_store: PostgresStore, name: str, settings: Any) -> None:
    settings.DURABLE = {"PREPARED_STATEMENTS": True}
    _use_often(postgres_store)
    attack(postgres_store, name)


@pytest.mark.parametrize("name", PATHS)
def test_the_same_with_a_wrapper_of_statements(postgres_store: PostgresStore, name: str) -> None:
    with CaptureQueriesContext(connections[postgres_store.alias]):
        attack(postgres_store, name)


def attack(store: DatabaseStore, name: str) -> None:
    """Write in vain, twice, then for good."""
    write = PATHS[name](store)
    before = contents(store.alias)
    with refusing_commits(store.alias):
        for _ in range(2):
            with pytest.raises((OperationalError, IntegrityError)) as caught:
                write()
            if connections[store.alias].vendor == "postgresql":
                assert isinstance(caught.value, OperationalError)
                assert isinstance(caught.value.__cause__, SerializationFailure)
            assert contents(store.alias) == before
    write()
    assert contents(store.alias) != before


def _use_often(store: DatabaseStore) -> None:
    """Have the session prepare the calls of functions."""
    for number in range(8):
        name = f"often-{number}"
        held = started(store, name)
        commit(store, held, entries=[an_entry("a")])
        commit(store, held, entries=[an_entry("a"), an_entry("b")])
        commit(store, held, run={"summary": "x"})
        store.send([a_message(name)])
