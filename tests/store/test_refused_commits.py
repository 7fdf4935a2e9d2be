"""What the database refuses only at COMMIT: a deferred constraint, an audit's trigger, a serialization failure.

Every write of every store on a database raises the error, leaves nothing behind, and the connection goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg.errors import SerializationFailure

from durable.core.records import ActionRecord, Batch, Message, RunChange, RunState
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.making import NOW, a_message, a_run, an_attempt, an_entry, at, commit, park, parked, started

DatabaseStore = SQLiteStore | PostgresStore
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


@dataclass(frozen=True)
class Path:
    """A write. `prepare` makes what it needs and returns the write, to be called once in vain and once for good."""

    name: str
    prepare: Callable[[DatabaseStore], Callable[[], object]]

    def __str__(self) -> str:
        return self.name


PATHS: list[Path] = []


def path(prepare: Callable[[DatabaseStore], Callable[[], object]]) -> Callable[[DatabaseStore], Callable[[], object]]:
    PATHS.append(Path(prepare.__name__, prepare))
    return prepare


@path
def create_one(store: DatabaseStore) -> Callable[[], object]:
    return lambda: store.create([a_run("new")])


@path
def create_many(store: DatabaseStore) -> Callable[[], object]:
    return lambda: store.create([a_run("new-1"), a_run("new-2")])


@path
def create_special(store: DatabaseStore) -> Callable[[], object]:
    return lambda: store.create([a_run("new", summary="planted")])


@path
def send_one(store: DatabaseStore) -> Callable[[], object]:
    parked(store, waiting_for="*")
    message = a_message(idempotency_id="once")
    return lambda: store.send([message])


@path
def send_many(store: DatabaseStore) -> Callable[[], object]:
    parked(store, waiting_for="*")
    messages = [a_message(), a_message()]
    return lambda: store.send(messages)


@path
def change(store: DatabaseStore) -> Callable[[], object]:
    parked(store)
    done = an_entry("changed")
    action = an_action("pause")
    return lambda: store.change(
        "run", lambda run, _: RunChange(run={"state": RunState.PAUSED}, entries=[done], action=action)
    )


@path
def plant(store: DatabaseStore) -> Callable[[], object]:
    message = Message(id="planted", run_id="new", queue="mail", body='"hi"', sent_at=NOW, order=1)

    def write() -> None:
        with transaction.atomic(using=store.alias):
            store.create([a_run("new", wake_at=None)])
            store.import_history("new", entries=[an_entry("a")], attempts=[an_attempt()], messages=[message])

    return write


@path
def log(store: DatabaseStore) -> Callable[[], object]:
    action = an_action("start")
    return lambda: store.log([action])


@path
def claim(store: DatabaseStore) -> Callable[[], object]:
    store.create([a_run("a"), a_run("b")])
    return lambda: store.claim(queue="q", now=NOW, lease_until=at(30), worker="w", limit=5)


@path
def claim_run(store: DatabaseStore) -> Callable[[], object]:
    store.create([a_run()])
    return lambda: store.claim_run("run", now=NOW, lease_until=at(30), worker="w")


@path
def record(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    return lambda: commit(store, held, entries=[an_entry()])


@path
def flush(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    return lambda: commit(store, held, entries=[an_entry("a"), an_entry("b")])


@path
def rewrite(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    commit(store, held, entries=[an_entry("a", ordinal=1, output="1")])
    return lambda: commit(store, held, entries=[an_entry("a", ordinal=1, output="2")])


@path
def everything(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    store.create([a_run("other")])
    commit(store, held, entries=[an_entry("gone")])
    send = a_message("other")
    return lambda: commit(
        store,
        held,
        entries=[an_entry("a")],
        deleted=["gone"],
        attempts=[an_attempt()],
        sends=[send],
        run={"summary": "x"},
    )


@path
def receive(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    message = a_message()
    store.send([message])
    return lambda: commit(store, held, entries=[an_entry("wait")], received=[(message.id, "wait")])


@path
def complete_message(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    message = a_message()
    store.send([message])
    commit(store, held, entries=[an_entry("wait")], received=[(message.id, "wait")])
    return lambda: commit(store, held, completed=[(message.id, '"thanks"')])


@path
def park_run(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    return lambda: park(store, held, wake_at=at(60))


@path
def complete_run(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    patch: dict[str, Any] = {
        "state": RunState.COMPLETED,
        "output": '"done"',
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
    return lambda: commit(store, held, run=patch)


@path
def renew(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    return lambda: store.renew([(held.id, held.fence)], at(90))


@path
def release(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    return lambda: store.release([(held.id, held.fence)], at(1))


@path
def atomic_step(store: DatabaseStore) -> Callable[[], object]:
    held = started(store)
    batch = Batch(run_id=held.id, fence=held.fence, now=NOW, entries=[an_entry("atomic")])

    def write() -> None:
        with store.transaction():
            store.commit(batch)

    return write


@pytest.mark.parametrize("each", PATHS, ids=str)
def test_what_fails_at_commit_is_raised_and_has_no_effect(database_store: DatabaseStore, each: Path) -> None:
    attack(database_store, each)


@pytest.mark.parametrize("each", PATHS, ids=str)
def test_the_same_where_the_session_keeps_statements(postgres_store: PostgresStore, each: Path, settings: Any) -> None:
    settings.DURABLE = {"PREPARED_STATEMENTS": True}
    _use_often(postgres_store)
    attack(postgres_store, each)


@pytest.mark.parametrize("each", PATHS, ids=str)
def test_the_same_with_a_wrapper_of_statements(postgres_store: PostgresStore, each: Path) -> None:
    with CaptureQueriesContext(connections[postgres_store.alias]):
        attack(postgres_store, each)


def attack(store: DatabaseStore, each: Path) -> None:
    """Write in vain, twice, then for good."""
    write = each.prepare(store)
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
