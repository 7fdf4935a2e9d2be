"""Parents, their children, and the children of one group, for the tests of stores."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from durable.core import transitions
from durable.core.errors import ErrorInfo
from durable.core.location import child_token
from durable.core.records import (
    AttemptRecord,
    Batch,
    Cause,
    ChildRecord,
    ChildStart,
    Committed,
    EntryStatus,
    GroupChange,
    GroupSpec,
    OnFailure,
    RunPatch,
    RunRecord,
    RunState,
    WhenParentEnds,
)
from durable.core.transitions import completed, failed
from durable.store import Store
from tests.store.making import (
    LEASE,
    NOW,
    a_batch,
    a_failure,
    a_new_run,
    a_run,
    an_attempt,
    an_entry,
    cancel,
    commit,
    park,
    started,
    the,
)

GROUP = "parent:bills"
AWAY = Cause(place="charge", error_type="BankError", pattern="away")


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
    return end_with(store, run_id, transitions.completed, now=moment, output="1")


def end_with(store: Store, run_id: str, transition: Callable[..., RunPatch], now: datetime, **given: Any) -> Committed:
    """Commit the end of a run, as the worker that has it, or as one that claims it."""
    held = store.claim_run(run_id, now=NOW, lease_until=NOW + LEASE, worker="w") or the(store, run_id)
    patch = transition(held, now=now, **given)
    return store.commit(Batch(run_id=run_id, fence=held.fence, now=now, run=patch, parent_id=held.parent_id))


def waiting(store: Store, *children: str, parent: str = "parent", starts: tuple[ChildStart, ...] = ()) -> RunRecord:
    """A parent that has started these children, and others, and is parked for the end of each."""
    held = started(store, parent)
    start_children(store, held, *(a_child(each, parent) for each in children), *starts)
    tokens = "/".join(map(child_token, children))
    park(store, held, waiting_for=f"/{tokens}/" if tokens else "", batch={"awaited_children": children})
    return the(store, parent)


# -- the children of one group


def member(number: int) -> str:
    """The id of a child of the group."""
    return f"{GROUP}:{number}"


def spec(size: int, **columns: Any) -> GroupSpec:
    given = {"at_once": 2, "on_failure": OnFailure.FINISH, **columns}
    return GroupSpec(id=GROUP, parent_id="parent", location="bills", size=size, position=10, **given)


def a_member(number: int, generation: int = 0, when_parent_ends: str = WhenParentEnds.CANCEL) -> ChildStart:
    child_id = member(number) + (f"~{generation}" if generation else "")
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
    park_for_group(store, held)
    return held


def park_for_group(store: Store, held: RunRecord) -> None:
    park(store, held, waiting_for=f"/{child_token(GROUP)}/", batch={"awaited_groups": [GROUP]})


def end(store: Store, number: int, state: str = RunState.COMPLETED) -> None:
    if state == RunState.CANCELLED:
        cancel(store, member(number))
    elif state == RunState.COMPLETED:
        finish(store, member(number))
    else:
        end_with(store, member(number), transitions.failed, now=NOW, error=ErrorInfo("E", "no"), origins=[])


def holding(run: RunRecord) -> Batch:
    """The commit that holds the step of a child."""
    entry = an_entry(
        "charge",
        status=EntryStatus.HELD,
        error=ErrorInfo("BankError", "away"),
        data={"held": {"reason": "exhausted", "since": NOW.isoformat(), "failure": {"kind": "exhausted"}}},
    )
    return a_batch(run, entries=[entry], failure=a_failure(run.id, AWAY, is_held=True))


# -- shapes of commits, and what they may have changed


ERROR: Final = ErrorInfo("ValueError", "declined")
#: Parts of commits for which PostgreSQL has functions of their own.
SHAPES: Final[dict[str, Callable[[RunRecord], dict[str, Any]]]] = {
    "one entry": lambda _: {"entries": [an_entry("new")]},
    "two entries": lambda _: {"entries": [an_entry("new"), an_entry("old", output="changed")]},
    "an attempt": lambda _: {"entries": [an_entry("old")], "attempts": [an_attempt("old")]},
    "completion": lambda run: {"run": completed(run, now=NOW, output="1")},
    "completion with an entry": lambda run: {"entries": [an_entry()], "run": completed(run, now=NOW, output="1")},
    "failure": lambda run: {"run": failed(run, now=NOW, error=ERROR), "failure": a_failure()},
    "start of a child": lambda _: {
        "entries": [an_entry("new")],
        "starts": [a_child("child", "run", child_location="new")],
    },
    "completion of a child": lambda run: {"run": completed(run, now=NOW, output="1"), "parent_id": "other"},
    "failure of a child": lambda run: {
        "run": failed(run, now=NOW, error=ERROR),
        "failure": a_failure(),
        "parent_id": "other",
    },
}


def everything(store: Store) -> list[object]:
    """Return all that the store has of the runs `run` and `other`."""
    found: list[object] = []
    for run_id in ("run", "other"):
        attempts: list[AttemptRecord] = store.attempts(run_id)
        found += [the(store, run_id), store.history(run_id), attempts, store.messages(run_id)]
    return found
