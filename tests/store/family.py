"""Parents and children for the tests of stores."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from durable.core import transitions
from durable.core.records import Batch, ChildRecord, ChildStart, Committed, RunRecord
from durable.store import Store
from tests.store.making import LEASE, NOW, a_new_run, a_run, commit, the


def a_child(run_id: str, parent_id: str = "parent", **values: Any) -> ChildStart:
    """A child to start: columns of its run, and `child_...` for those of its row."""
    child = {name.removeprefix("child_"): values.pop(name) for name in list(values) if name.startswith("child_")}
    make = a_new_run if values.keys() & {"ranking", "tags", "key"} else a_run
    run = make(run_id, parent_id=parent_id, **values)
    return ChildStart(
        run, ChildRecord(**{"run_id": run_id, "parent_id": parent_id, "location": run_id, "position": 1, **child})
    )


def start_children(store: Store, parent: RunRecord, *starts: ChildStart) -> Committed:
    return commit(store, parent, starts=starts)


def finish(store: Store, run_id: str, moment: datetime = NOW) -> Committed:
    held = store.claim_run(run_id, now=NOW, lease_until=NOW + LEASE, worker="w") or the(store, run_id)
    patch = transitions.completed(held, now=moment, output="1")
    return store.commit(Batch(run_id=run_id, fence=held.fence, now=moment, run=patch, parent_id=held.parent_id))
