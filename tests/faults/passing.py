"""Single passes on the default database, as a worker makes them, for attacks on what one pass writes."""

from __future__ import annotations

from datetime import datetime, timedelta

from durable.conf import conf
from durable.core import clock
from durable.core.records import RunRecord
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.handles import Handle
from durable.store import Store, store_for


def production_store() -> Store:
    """The store that the settings name."""
    return store_for(conf.DATABASE)


def claimed(handle: Handle, *, at: datetime | None = None, store: Store | None = None) -> RunRecord:
    """The run in the hands of a worker whose clock says `at`."""
    now = at or clock.now()
    found = (store or production_store()).claim_run(
        handle.id, now=now, lease_until=now + timedelta(seconds=conf.LEASE), worker="attacked"
    )
    assert found is not None
    return found


def pass_once(handle: Handle, *, at: datetime | None = None, store: Store | None = None) -> PassOutcome:
    """Claim the run and pass it once. `store` stands before the production store, for the pass alone."""
    return execute_pass(claimed(handle, at=at), store=store or production_store(), eviction=Eviction())
