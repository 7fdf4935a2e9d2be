"""Rows with times that Python cannot hold: SQL can write them, and one of them must not hide the others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connections
from django.db.models import Max

from durable.core.clock import EARLIEST, LATEST
from durable.models import Run
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.making import LEASE, NOW, a_run, an_entry, commit, started, the

UNREADABLE = ["infinity", "-infinity", "20000-01-01 00:00:00+00", "0044-03-15 BC"]


def shown(moment: str) -> datetime:
    return EARLIEST if moment.startswith("-") or moment.endswith("BC") else LATEST


def write(alias: str, column: str, moment: str, run_id: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"UPDATE durable_run SET {column} = %s WHERE id = %s", [moment, run_id])


@pytest.fixture
def store(postgres_store: PostgresStore) -> PostgresStore:
    postgres_store.create([a_run("one", wake_at=NOW), a_run("two", wake_at=NOW)])
    return postgres_store


@pytest.mark.parametrize("moment", UNREADABLE)
def test_an_unreadable_time_hides_no_other_run(store: PostgresStore, moment: str) -> None:
    write(store.alias, "wake_at", moment, "one")
    runs = {run.id: run for run in Run.objects.using(store.alias)}
    assert set(runs) == {"one", "two"}
    assert runs["one"].wake_at == shown(moment)
    assert runs["two"].wake_at == the(store, "two").wake_at
    assert the(store, "one").wake_at == shown(moment)
    assert dict(Run.objects.using(store.alias).values_list("id", "wake_at"))["one"] == shown(moment)


def test_the_largest_of_unreadable_times_can_be_asked_for(store: PostgresStore) -> None:
    write(store.alias, "wake_at", "infinity", "one")
    assert Run.objects.using(store.alias).aggregate(Max("wake_at"))["wake_at__max"] == LATEST


@pytest.mark.parametrize("moment", UNREADABLE)
@pytest.mark.parametrize("is_observed", [False, True])
def test_a_claim_passes_by_no_run_for_an_unreadable_time(store: PostgresStore, moment: str, is_observed: bool) -> None:
    write(store.alias, "start_tag", moment, "one")
    if is_observed:
        connection = connections[store.alias]
        with connection.execute_wrapper(lambda run, *args: run(*args)):
            claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    else:
        claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
    assert {run.id for run in claimed} == {"one", "two"}


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("moment", UNREADABLE)
def test_a_history_with_an_unreadable_time_is_loaded(store: PostgresStore, moment: str, is_observed: bool) -> None:
    commit(store, started(store, "other"), entries=[an_entry("a"), an_entry("b", ordinal=2)])
    with connections[store.alias].cursor() as cursor:
        cursor.execute("UPDATE durable_entrymetadata SET next_attempt_at = %s", [moment])
        cursor.execute(
            "INSERT INTO durable_runlimit (run_id, deadline, length, work_limit, worked) VALUES ('other', %s, NULL, NULL, 0)",
            [moment],
        )
    if is_observed:
        with connections[store.alias].execute_wrapper(lambda run, *args: run(*args)):
            history = store.load("other")
    else:
        history = store.load("other")
    assert [entry.next_attempt_at for entry in history] == [shown(moment)] * 2
    assert history.limits is not None
    assert history.limits.deadline == shown(moment)


def test_a_readable_time_is_read_exactly(database_store: SQLiteStore | PostgresStore) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    database_store.create([a_run("run", wake_at=moment), a_run("none", wake_at=None)])
    found = dict(Run.objects.using(database_store.alias).values_list("id", "wake_at"))
    assert found == {"run": moment, "none": None}
