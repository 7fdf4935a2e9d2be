"""A parent and the children of one group, for the tests of stores."""

from __future__ import annotations

from typing import Any

from durable.core import transitions
from durable.core.errors import ErrorInfo
from durable.core.location import child_token
from durable.core.records import (
    Batch,
    Cause,
    ChildRecord,
    ChildStart,
    EntryStatus,
    GroupChange,
    GroupSpec,
    OnFailure,
    RunChange,
    RunRecord,
    RunState,
    WhenParentEnds,
)
from durable.store import Store
from tests.store.family import finish
from tests.store.making import (
    LEASE,
    NOW,
    a_batch,
    a_failure,
    a_new_run,
    an_entry,
    commit,
    park,
    started,
    the,
)

GROUP = "parent:bills"
AWAY = Cause(place="charge", error_type="BankError", pattern="away")


def spec(size: int, **columns: Any) -> GroupSpec:
    given = {"at_once": 2, "on_failure": OnFailure.FINISH, **columns}
    return GroupSpec(id=GROUP, parent_id="parent", location="bills", size=size, position=10, **given)


def a_member(number: int, generation: int = 0, when_parent_ends: str = WhenParentEnds.CANCEL) -> ChildStart:
    child_id = f"{GROUP}:{number}" + (f"~{generation}" if generation else "")
    run = a_new_run(child_id, parent_id="parent")
    child = ChildRecord(
        run_id=child_id,
        parent_id="parent",
        location="bills",
        position=10 + number,
        generation=generation,
        group="bills",
        member_of=GROUP,
        when_parent_ends=when_parent_ends,
    )
    return ChildStart(run, child)


def change(store: Store, held: RunRecord, **columns: Any) -> None:
    commit(store, held, groups=[GroupChange(id=GROUP, **columns)])


def grouped(store: Store, size: int, **columns: Any) -> RunRecord:
    """A parent that has made a group of that many children and waits for it."""
    held = started(store, "parent")
    leaves = columns.get("when_parent_ends", WhenParentEnds.CANCEL)
    members = [a_member(number, when_parent_ends=leaves) for number in range(size)]
    change(store, held, new=spec(size, **columns), starts=members[:3], created=min(3, size))
    if size > 3:
        change(store, held, starts=members[3:], created=size)
    park(store, held, waiting_for=f"/{child_token(GROUP)}/", batch={"awaited_groups": [GROUP]})
    return held


def end(store: Store, number: int, state: str = RunState.COMPLETED) -> None:
    run_id = f"{GROUP}:{number}"
    if state == RunState.CANCELLED:
        store.change(
            run_id,
            lambda run, _: RunChange(run=transitions.cancelled_at_once(run, now=NOW, reason="why", summary="")),
        )
        return
    if state == RunState.COMPLETED:
        finish(store, run_id)
        return
    held = store.claim_run(run_id, now=NOW, lease_until=NOW + LEASE, worker="w") or the(store, run_id)
    patch = transitions.failed(held, now=NOW, error=ErrorInfo("E", "no"), origins=[])
    store.commit(Batch(run_id=run_id, fence=held.fence, now=NOW, run=patch, parent_id="parent"))


def holding(run: RunRecord) -> Batch:
    """The commit that holds the step of a child."""
    entry = an_entry(
        "charge",
        status=EntryStatus.HELD,
        error=ErrorInfo("BankError", "away"),
        data={"held": {"reason": "exhausted", "since": NOW.isoformat(), "failure": {"kind": "exhausted"}}},
    )
    return a_batch(run, entries=[entry], failure=a_failure(run.id, AWAY, is_held=True))
