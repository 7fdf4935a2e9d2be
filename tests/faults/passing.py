"""Single passes on the default database, as a worker makes them, for attacks on what one pass writes."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connection

from durable import moments
from durable.conf import conf
from durable.core.entries import RunRecord
from durable.handles import Handle
from durable.passes import Eviction, PassOutcome, execute_pass
from durable.store import Store, store_for

__all__ = ["claimed", "other_session", "pass_once", "production_store", "until_somebody_waits_for_a_lock"]


def production_store() -> Store:
    """The store that the settings name."""
    return store_for(conf.DATABASE)


def claimed(handle: Handle, *, at: datetime | None = None, store: Store | None = None) -> RunRecord:
    """The run in the hands of a worker whose clock says `at`."""
    now = at or moments.now()
    found = (store or production_store()).claim_run(
        handle.id, now=now, lease_until=now + timedelta(seconds=conf.LEASE), worker="attacked"
    )
    assert found is not None
    return found


def pass_once(handle: Handle, *, at: datetime | None = None, store: Store | None = None) -> PassOutcome:
    """Claim the run and pass it once. `store` stands before the production store, for the pass alone."""
    return execute_pass(claimed(handle, at=at), store=store or production_store(), eviction=Eviction())


def other_session() -> dict[str, Any]:
    """How psycopg connects to the default database beside Django."""
    parameters = connection.get_connection_params()
    return {key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if parameters.get(key)}


def until_somebody_waits_for_a_lock(seconds: float = 20.0) -> None:
    """Return when a session of the default database waits for a lock that another one has."""
    deadline = time.monotonic() + seconds
    with psycopg.connect(**other_session(), autocommit=True) as other:
        while time.monotonic() < deadline:
            found = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            if found and found[0]:
                return
            time.sleep(0.01)
    raise AssertionError("nobody came to wait for a lock")
