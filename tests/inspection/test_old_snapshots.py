"""What holds vacuum up is reported, with what to do: sessions, prepared transactions, replicas and slots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
import redis
from django.core.management import call_command
from django.db import connection

from durable.inspection import database
from durable.inspection.database import OldSnapshot, old_snapshots_and_ids
from tests.inspection.conftest import findings
from tests.support.locks import other_session

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def session() -> Iterator[psycopg.Connection[Any]]:
    connection.ensure_connection()
    with psycopg.connect(**other_session(), application_name="nightly dump") as found:
        yield found


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OLD", timedelta(0))


def old_snapshots() -> list[OldSnapshot]:
    return old_snapshots_and_ids()[0]


def doctor() -> str:
    output = StringIO()
    with pytest.raises(SystemExit):  # there are no workers
        call_command("durable", "doctor", stdout=output)
    return output.getvalue()


@pytest.mark.parametrize("how", ["a snapshot", "a write"])
@pytest.mark.redis
def test_a_session_with_its_pid_its_application_and_what_to_do(
    session: psycopg.Connection[Any], at_once: None, how: str, redis_connection: redis.Redis
) -> None:
    if how == "a snapshot":
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1 FROM durable_run")
    else:
        session.execute("SELECT txid_current()")
    pid = session.info.backend_pid
    [found] = old_snapshots()
    assert f'the session {pid} of "nightly dump"' in found.holder
    assert "idle in a transaction for" in found.holder
    assert f"pg_terminate_backend({pid})" in found.advice
    [finding] = findings("old_snapshot")
    assert not finding.is_urgent
    output = doctor()
    assert re.search(rf"old_snapshot\s+note\s+An old snapshot holds vacuum up: the session {pid}", output)
    assert f"pg_terminate_backend({pid})" in output
    session.rollback()
    assert old_snapshots() == []


def test_one_that_is_younger_than_a_minute_is_nothing(session: psycopg.Connection[Any]) -> None:
    session.execute("SELECT txid_current()")
    assert old_snapshots() == []


def test_one_that_is_older_than_an_hour_needs_a_person(
    session: psycopg.Connection[Any], at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable.inspection.findings.LONG", 0.0)
    session.execute("SELECT txid_current()")
    [finding] = findings("old_snapshot")
    assert finding.is_urgent


def test_a_session_that_has_done_nothing_holds_nothing(session: psycopg.Connection[Any], at_once: None) -> None:
    session.execute("SELECT 1")  # READ COMMITTED: its snapshot went with the statement
    assert old_snapshots() == []


@pytest.fixture
def shadowed() -> Iterator[Any]:
    """A cursor on a session that sees views of the test's own in the place of the server's."""
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO pg_temp, pg_catalog, public")
        yield cursor
    connection.close()


def test_a_prepared_transaction(shadowed: Any) -> None:
    shadowed.execute(
        "CREATE TEMP VIEW pg_prepared_xacts AS SELECT 'tx-7'::text AS gid, 'app'::name AS owner, "
        "now() - interval '2 hours' AS prepared, current_database() AS database"
    )
    [found] = old_snapshots()
    assert found.holder == 'the prepared transaction "tx-7" (role app) has been open for 2 h'
    assert "ROLLBACK PREPARED 'tx-7'" in found.advice


def test_a_replica_and_a_slot(shadowed: Any) -> None:
    shadowed.execute("SELECT txid_current_snapshot()")
    # the number of a transaction far behind the present one
    shadowed.execute(
        "CREATE TEMP VIEW pg_replication_slots AS SELECT 'standby'::name AS slot_name, false AS active, "
        "((txid_current() + 4294967296 - 200000) % 4294967296)::text::xid AS xmin"
    )
    shadowed.execute(
        "CREATE TEMP VIEW pg_stat_replication AS SELECT 42 AS pid, 'replica-1'::text AS application_name, "
        "((txid_current() + 4294967296 - 300000) % 4294967296)::text::xid AS backend_xmin"
    )
    replica, slot = old_snapshots()
    assert re.search(
        r'the replica "replica-1" \(walsender 42\) asks for a snapshot that is 30\d{4} trans', replica.holder
    )
    assert "hot_standby_feedback" in replica.advice
    assert 'the replication slot "standby", which is not active, keeps a snapshot' in slot.holder
    assert "pg_drop_replication_slot('standby')" in slot.advice
