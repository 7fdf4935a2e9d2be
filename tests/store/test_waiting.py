"""Waiting for PostgreSQL's answer: signals are heard where they may be, and no other thread is kept from running."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psycopg
import pytest
from django.db import connections
from psycopg.pq import TransactionStatus

from durable.store.postgres import PostgresStore, libpq
from durable.store.postgres.libpq import SQLFunction
from tests.store.conftest import POSTGRES
from tests.store.making import a_run, an_entry, commit, started, the
from tests.support.locks import other_session, until_sessions_wait_for_locks


class Interrupted(KeyboardInterrupt):
    """What a handler raises, as that of a step's timeout does."""


@contextmanager
def held(statement: str = "SELECT FROM durable_run WHERE id = 'run' FOR UPDATE") -> Iterator[Callable[[], None]]:
    """Inside, another session holds what the statement locks, until the function is called or to the end."""
    with psycopg.connect(**other_session(POSTGRES), autocommit=True) as session:
        session.execute("BEGIN")
        session.execute(statement)
        yield session.close


def wait_until_blocked() -> None:
    """Until a session waits for a lock. Runs only while the caller that waits for its answer lets other threads run."""
    until_sessions_wait_for_locks(POSTGRES)


def raw_connection() -> psycopg.Connection[Any]:
    """Psycopg's connection under the store's, open."""
    connection = connections[POSTGRES]
    connection.ensure_connection()
    raw: psycopg.Connection[Any] = connection.connection
    return raw


class TooLate(Exception):
    """What another one's handler raises, as that of RQ's job timeout does."""


@contextmanager
def interrupted(error: type[BaseException] = Interrupted) -> Iterator[None]:
    """Inside, SIGALRM raises the error."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def meanwhile(*actions: Callable[[], object]) -> threading.Thread:
    """A thread that does these, one after the other."""
    thread = threading.Thread(target=lambda: [each() for each in actions])
    thread.start()
    return thread


def send_alarm() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


@pytest.mark.parametrize("by_name", [True, False])
def test_other_threads_run_while_an_answer_is_waited_for(
    postgres_store: PostgresStore, settings: Any, by_name: bool
) -> None:
    settings.DURABLE = {"PREPARED_STATEMENTS": by_name}
    run = started(postgres_store)
    for number in range(8):
        commit(postgres_store, run, entries=[an_entry(f"before-{number}")])
    with held() as let_go:
        other = meanwhile(wait_until_blocked, let_go)
        commit(postgres_store, run, entries=[an_entry("held-up")])
        other.join()
    assert "held-up" in {entry.location for entry in postgres_store.load("run")}


def test_other_threads_run_while_an_answer_that_has_begun_is_waited_for(postgres_store: PostgresStore) -> None:
    started(postgres_store)
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("""
            CREATE OR REPLACE FUNCTION pg_temp.noisy(id text) RETURNS text SET lock_timeout = '5s' LANGUAGE plpgsql AS $$
            BEGIN
                RAISE NOTICE 'the first that is there to be read';
                PERFORM FROM durable_run WHERE durable_run.id = noisy.id FOR UPDATE;
                RETURN id;
            END $$
        """)
    with held() as let_go:
        other = meanwhile(wait_until_blocked, let_go)
        assert SQLFunction("pg_temp.noisy", ["text"])(POSTGRES, ["run"], uninterrupted=True) == ("run",)
        other.join()


def test_a_commit_ends_before_a_signal_is_heard(postgres_store: PostgresStore) -> None:
    run = started(postgres_store)
    with interrupted(), held() as let_go:
        # twice: an answer that was given up for the first one would be taken for the next one's
        other = meanwhile(wait_until_blocked, send_alarm, lambda: time.sleep(0.05), send_alarm, let_go)
        with pytest.raises(Interrupted):
            commit(postgres_store, run, entries=[an_entry("a")])
        other.join()
    commit(postgres_store, run, entries=[an_entry("b")])
    assert [entry.location for entry in postgres_store.load("run")] == ["a", "b"]


def test_what_a_users_code_waits_for_is_cancelled_by_a_signal(postgres_store: PostgresStore) -> None:
    run = a_run()
    with interrupted(), held("LOCK TABLE durable_run IN EXCLUSIVE MODE"):
        other = meanwhile(wait_until_blocked, send_alarm)
        with pytest.raises(Interrupted):
            postgres_store.create([run])
        other.join()
    assert postgres_store.create([run]) == [(run, True)]


def test_a_connection_with_an_answer_that_was_not_read_is_closed(postgres_store: PostgresStore) -> None:
    run = a_run()
    with interrupted(TooLate), held("LOCK TABLE durable_run IN EXCLUSIVE MODE"):
        other = meanwhile(wait_until_blocked, send_alarm)
        with pytest.raises(TooLate):
            postgres_store.create([run])
        other.join()
    [(found, _)] = postgres_store.create([run])  # whether the first one happened is unknown
    assert found.id == "run"


def test_a_signal_that_comes_while_something_is_sent_leaves_no_answer_behind(postgres_store: PostgresStore) -> None:
    raw = raw_connection()

    def send() -> None:
        raw.pgconn.send_query_params(b"SELECT 1", [])
        signal.raise_signal(signal.SIGALRM)

    with interrupted(), pytest.raises(Interrupted):
        raw.wait(libpq._Sent(raw, send))
    assert raw.pgconn.transaction_status == TransactionStatus.IDLE
    assert raw.execute("SELECT 2").fetchone() == (2,)


def test_what_is_too_large_for_a_socket_is_sent_all_the_same(postgres_store: PostgresStore) -> None:
    run = started(postgres_store)
    large = '"' + "x" * 8_000_000 + '"'
    commit(postgres_store, run, entries=[an_entry("large", output=large)])
    assert [entry.output == large for entry in postgres_store.load("run")] == [True]
    big = a_run("big", input=large)
    assert postgres_store.create([big]) == [(big, True)]
    assert the(postgres_store, "big").input == large
