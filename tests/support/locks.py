"""Sessions beside Django's, and those that wait for locks, as tests of two at once need them."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from django.db import connection, connections


def other_session(alias: str = "default") -> dict[str, Any]:
    """How psycopg connects to a PostgreSQL database beside Django."""
    parameters = connections[alias].get_connection_params()
    return {key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if parameters.get(key)}


def sessions() -> set[int]:
    """The connections to the tests' database, as their processes in the server. Autovacuum's visits are none."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def until_sessions_wait_for_locks(alias: str = "default", *, count: int = 1, seconds: float = 60.0) -> None:
    """Return when as many sessions of the database wait for a lock that another one has."""
    deadline = time.monotonic() + seconds
    with psycopg.connect(**other_session(alias), autocommit=True) as other:
        while time.monotonic() < deadline:
            found = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            if found and found[0] >= count:
                return
            time.sleep(0.005)
    raise AssertionError(f"no {count} sessions came to wait for a lock")
