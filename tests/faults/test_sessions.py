"""A step that changes its database session changes it for itself: not for the engine, and not for the next run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from durable.conf import conf
from durable.core.records import RunRecord
from durable.execution.passes import execute_pass
from durable.models import Run
from durable.store import sessions, store_for
from durable.worker.executor import RunExecutor
from durable.worker.presence import ShutdownFlag
from tests.e2e.workers import Workers
from tests.faults.workflows import POLLUTIONS, apolluted, in_branches, plain, polluted, where_am_i, where_are_branches
from tests.support.waiting import wait_until_ended
from tests.support.worker import lease_manager

ROLE = "durable_nobody"
PLAIN_RUNS = 50


@pytest.fixture
def role(db: None) -> Iterator[str]:
    """A role that may do nothing, and may be set."""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP ROLE IF EXISTS {ROLE}")
        cursor.execute(f"CREATE ROLE {ROLE}")
    yield ROLE
    with connection.cursor() as cursor:
        cursor.execute(f"DROP ROLE IF EXISTS {ROLE}")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_what_a_step_sets_in_its_session_stops_no_other_run(
    child_environment: dict[str, str], tmp_path: Path, role: str, concurrency: str
) -> None:
    bad = [each.start(way) for way in POLLUTIONS for each in (polluted, apolluted, in_branches)]
    good = plain.start_many([(number,) for number in range(PLAIN_RUNS)])
    log = tmp_path / "worker.log"
    options = ["--concurrency", concurrency]
    with Workers(1, child_environment, log, settings="tests.faults.persistent", options=options):
        wait_until_ended(log)
    said = log.read_text(errors="replace")
    assert [each.output for each in good] == list(range(PLAIN_RUNS)), said
    assert [each.output for each in bad] == ["done"] * len(bad), said
    assert "cannot claim" not in said
    assert "Traceback" not in said


@pytest.fixture
def holder() -> Iterator[RunExecutor]:
    """What passes the runs of a worker, in this thread."""
    stop, store = ShutdownFlag(), store_for(conf.DATABASE)
    with lease_manager(store, stop) as manager:
        yield RunExecutor(store=store, execute=execute_pass, leases=manager, stop=stop)
    connections.close_all()


def claimed(holder: RunExecutor) -> list[RunRecord]:
    found = holder.claim("default", 10, time.monotonic() + 60)
    assert found
    return found


def carry_on(holder: RunExecutor) -> None:
    for record in claimed(holder):
        holder.execute(record)


def _dsn() -> str:
    given: dict[str, Any] = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    return psycopg.conninfo.make_conninfo(**{key: given[key] for key in keys if given.get(key)})


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("way", list(POLLUTIONS))
def test_the_session_is_as_new_for_the_engine_and_for_the_next_step(
    holder: RunExecutor, role: str, way: str, *, atomic: bool
) -> None:
    handle = where_am_i.start(way, atomic)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")  # the session is there before the worker is, as it is after the first run
    carry_on(holder)
    assert handle.state == "completed", handle.error
    assert handle.result()[0] == handle.result()[1]
    assert connection.connection is not None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("way", list(POLLUTIONS))
def test_the_session_of_a_branch_is_as_new_for_the_next_step_of_its_thread(
    holder: RunExecutor, role: str, way: str, *, atomic: bool
) -> None:
    handle = where_are_branches.start(way, atomic)
    carry_on(holder)
    assert handle.state == "completed", handle.error
    before, *others = handle.result()
    assert others == [before] * 3


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_step_that_uses_the_database_costs_no_round_trip_more(
    holder: RunExecutor, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[str] = []
    original = sessions.restore

    def restore(found: Any) -> None:
        restored.append(found.alias)
        original(found)

    monkeypatch.setattr(sessions, "restore", restore)
    for way in ("read only", "search_path", "set_config"):
        polluted.start(way)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    carry_on(holder)
    assert Run.objects.filter(state="completed").count() == 3
    assert restored == []


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_step_that_leaves_the_database_alone_leaves_the_session_alone(
    holder: RunExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[bool] = []
    original = sessions.preface

    def preface(found: Any) -> str:
        restored.append(True)
        return original(found)

    monkeypatch.setattr(sessions, "preface", preface)
    handles = [plain.start(7), plain.start(8)]
    first, second = claimed(holder)
    holder.execute(first)
    del restored[:]  # this thread has started the runs
    holder.execute(second)
    assert restored == []
    assert [each.state for each in handles] == ["completed", "completed"]


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_prepares_new_sessions_prepares_those_that_are_restored(holder: RunExecutor) -> None:
    def prepare(*, connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '77s'")

    connection_created.connect(prepare)
    try:
        connections.close_all()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        handle = polluted.start("lock_timeout")
        carry_on(holder)
        assert handle.state == "completed"
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("77s",)
    finally:
        connection_created.disconnect(prepare)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_server_that_became_read_only_is_left_for_a_new_connection(holder: RunExecutor) -> None:
    """As a primary that was demoted without cutting its connections: no code of a step has touched the session."""
    handle = plain.start(1)
    name = connection.settings_dict["NAME"]
    with psycopg.connect(_dsn(), autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            connections.close_all()
            with connection.cursor() as cursor:
                cursor.execute("SHOW default_transaction_read_only")
                assert cursor.fetchone() == ("on",)
        finally:
            other.execute("SET default_transaction_read_only = off")
            other.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    before = connection.connection
    carry_on(holder)
    assert connection.connection is not before
    assert handle.state == "completed"


@pytest.mark.django_db(transaction=True)
def test_a_pragma_of_a_step_does_not_outlive_it_on_sqlite(holder: RunExecutor, tmp_path: Path) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("speaks of SQLite")
    handle = polluted.start("pragma")
    after = plain.start(3)
    carry_on(holder)
    assert handle.state == "completed", handle.error
    assert after.state == "completed", after.error
