"""A parent and its children on two connections at READ COMMITTED: every order of two transactions, on real locks.

No order may lose a wake-up, leave a child open
under a parent that has ended, or deadlock. Nor may one leave a child without its compensation: the question of the
parent, repeated as its next pass repeats it, finds a child that compensates, is asked to, or has nothing left to undo.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.children.rollback import change_of
from durable.core.errors import InvalidTransitionError
from durable.core.records import ENDED, EntryStatus, Request, RunChange, RunRecord, RunState
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, Actor, Pools, Race
from tests.store.children import a_child, finish, start_children, waiting
from tests.store.conftest import POSTGRES
from tests.store.making import (
    LEASE,
    NOW,
    a_message,
    a_run,
    an_entry,
    at,
    cancel,
    changed,
    claimed,
    commit,
    park,
    started,
    the,
)
from tests.support.transitions import CALLS

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def family(store: Store, *children: str) -> None:
    """A parent that waits for its children, which workers have."""
    waiting(store, *children)
    for each in children:
        claimed(store, each)


def test_a_parent_parks_while_its_child_ends(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    start_children(store, held, a_child("a"))
    claimed(store, "a")
    race.run(
        lambda: park(store, held, waiting_for="/~a/", batch={"awaited_children": ["a"]}),
        lambda: finish(store, "a", at(1)),
    )
    parent = the(store, "parent")
    if race.both_commit:
        assert parent.state == RunState.SLEEPING
        assert parent.wake_at is not None
    elif race.a_commits:
        assert the(store, "a").state == RunState.RUNNING
        assert parent.wake_at is None


def test_the_last_two_children_end(race: Race) -> None:
    store = race.store
    family(store, "a", "b")
    race.run(lambda: finish(store, "a", at(1)), lambda: finish(store, "b", at(2)))
    expected = at(1) if race.a_commits else at(2) if race.b_commits else None
    assert the(store, "parent").wake_at == expected


def test_a_parent_is_cancelled_while_it_starts_a_child(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    race.run(
        lambda: start_children(store, held, a_child("a")),
        lambda: cancel(store, "parent"),
    )
    child = store.get("a")
    if race.b_commits:
        assert the(store, "parent").state == RunState.CANCELLED
        assert child is None or child.state == RunState.CANCELLED
    else:
        assert (child is not None) == race.a_commits


def test_a_parent_and_its_child_end(race: Race) -> None:
    store = race.store
    family(store, "a")
    race.run(lambda: cancel(store, "parent"), lambda: finish(store, "a", at(1)))
    parent, child = the(store, "parent"), the(store, "a")
    if race.both_commit:
        assert {parent.state, child.state} <= ENDED
        assert child.state == RunState.COMPLETED
    elif race.a_commits:
        assert child.pending_request == "cancel" or store.cascade("", at(2)) == ("parent", 1)
        assert the(store, "a").pending_request == "cancel"
    elif race.b_commits:
        assert parent.wake_at == at(1)
    store.cascade("", at(3))
    assert store.cascade("", at(4)) is None or not race.a_commits


def test_a_child_is_claimed_while_its_parent_ends(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    start_children(store, held, a_child("a"))
    race.run(
        lambda: cancel(store, "parent"),
        lambda: store.claim(queue="q", now=at(61), lease_until=at(120), worker="w", limit=5),
    )
    if race.a_commits:
        store.cascade("", at(62))
        child = the(store, "a")
        assert child.state == RunState.CANCELLED or child.pending_request == "cancel"


def test_a_parent_is_recovered_while_the_sweep_ends_its_children(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    start_children(store, held, a_child("a"))
    failed: Any = transitions.crash_limit_reached(held, now=NOW, error=None, summary="")  # type: ignore[arg-type]
    with connections[POSTGRES].cursor() as cursor:  # the end leaves the child
        cursor.execute("ALTER TABLE durable_run DISABLE TRIGGER durable_ended")
        try:
            commit(store, held, run=failed)
        finally:
            cursor.execute("ALTER TABLE durable_run ENABLE TRIGGER durable_ended")
        cursor.execute("INSERT INTO durable_cascade VALUES ('parent', now())")
    swept, _ = race.run(
        lambda: store.cascade("", at(1)),
        lambda: changed(store, "parent", transitions.recovered, now=at(2), generations={}, summary=""),
    )
    is_cancelled = the(store, "a").state == RunState.CANCELLED
    assert is_cancelled == (swept == ("parent", 1) and race.a_commits)
    if race.b_commits:
        assert the(store, "parent").state == RunState.PENDING
        store.cascade("", at(3))
        assert the(store, "a").state == (RunState.CANCELLED if is_cancelled else RunState.PENDING)
        assert store.cascade("", at(4)) is None


@pytest.mark.parametrize(("parent_id", "child_id"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("end", ENDS)
def test_a_parent_sends_to_its_child_while_that_ends(
    postgres_store: PostgresStore, pools: Pools, parent_id: str, child_id: str, end: str
) -> None:
    """The end has the child's row when the parent asks for it, and then asks for the parent's row.

    That is a deadlock if the parent's commit has locked its own row.
    """
    store = postgres_store
    held = started(store, parent_id)
    start_children(store, held, a_child(child_id, parent_id, created_at=at(1), wake_at=None))
    sends = [a_message(child_id)]
    sender = Actor(pools[0], "sender", lambda: commit(store, held, sends=sends), "COMMIT")

    def decide(run: Any, _entries: Any) -> RunChange:
        assert sender.act("A") == "waits"
        return RunChange(run=CALLS["cancelled_at_once"](run))

    ending = Actor(pools[1], "end", lambda: store.change(child_id, decide), end)
    try:
        assert ending.act("B") == "done"
    finally:  # after a deadlock too: its rows stay locked until then
        ending.act("b")
        sender.finish()
        sender.act("a")
    assert (the(store, child_id).state == RunState.CANCELLED) == (end == "COMMIT")
    assert the(store, child_id).message_count == 1


@pytest.mark.parametrize("other_id", ["a", "z"])
@pytest.mark.parametrize("other_since", [at(-10), at(10)])
def test_a_child_sends_in_its_last_commit_to_a_run_that_its_parent_sends_to(
    postgres_store: PostgresStore, pools: Pools, other_id: str, other_since: datetime
) -> None:
    store = postgres_store
    store.create([a_run(other_id, created_at=other_since)])
    held = started(store, "parent")
    start_children(store, held, a_child("child", created_at=at(1)))
    child = claimed(store, "child")
    done: Any = transitions.completed(child, now=at(2), output="1")
    last = {"run": done, "parent_id": "parent", "sends": [a_message(other_id)]}
    sends = [a_message(other_id)]
    with ThreadPoolExecutor(1) as pool:
        blocker = Actor(pool, "blocker", lambda: store._lock_run(other_id), "ROLLBACK")
        assert blocker.act("C") == "done"
        ending = Actor(pools[1], "end", lambda: commit(store, child, **last), "COMMIT")
        assert ending.act("B") == "waits"
        sender = Actor(pools[0], "sender", lambda: commit(store, held, sends=sends), "COMMIT")
        assert sender.act("A") == "waits"
        blocker.act("c")
        pool.submit(connections.close_all).result(120)
    try:
        ending.finish()
    finally:
        ending.act("b")
        sender.finish()
        sender.act("a")
    assert the(store, other_id).message_count == 2
    assert the(store, "child").state == RunState.COMPLETED


# -- the compensation of a child and whatever else happens to the child


def family_to_undo(store: PostgresStore, state: str) -> None:
    """A parent that waits for its child, which has one step with a handler left to run, in this state."""
    waiting(store, "c")
    child = claimed(store, "c")
    done = an_entry("charge", status=EntryStatus.COMPLETED, finished_ordinal=9, data={"rollback": {"handler": "m:f"}})
    commit(store, child, entries=[done])
    if state == RunState.SLEEPING:
        park(store, the(store, "c"))
    elif state == RunState.PENDING:
        park(store, the(store, "c"), wake_at=NOW)
    elif state == RunState.FAILED:
        call(store, "stopped")
    elif state == RunState.COMPLETED:
        finish(store, "c")


def call(store: Store, transition: str) -> str:
    try:
        changed(store, "c", CALLS[transition])
    except (AssertionError, InvalidTransitionError, ValueError):  # the state is another by now
        return "refused"
    return "done"


def undo(store: Store) -> RunRecord:
    return store.change("c", lambda run, entries: change_of(run, entries, "parent", at(3)))


def end_by(store: Store, held: RunRecord) -> None:
    """The end by the worker that has the child, or that had it."""
    patch = transitions.completed(held, now=at(1), output="1")
    commit(store, held, now=at(1), run=patch, parent_id="parent")


#: By what else happens to the child: the state before, and the other transaction.
OTHERS: dict[str, tuple[str, Callable[[Store, RunRecord], Any]]] = {
    "its worker ends it": (RunState.RUNNING, end_by),
    "an operator cancels it": (RunState.SLEEPING, lambda store, _: call(store, "cancelled_at_once")),
    "a worker claims it": (
        RunState.PENDING,
        lambda store, _: store.claim_run("c", now=NOW, lease_until=NOW + LEASE, worker="x"),
    ),
    "it is recovered": (RunState.FAILED, lambda store, _: call(store, "recovered")),
    "its worker has it, an operator asks": (RunState.RUNNING, lambda store, _: call(store, "cancel_requested")),
    "another pass of the parent asks too": (RunState.COMPLETED, lambda store, _: undo(store)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_child_is_undone_while(race: Race, name: str) -> None:
    store = race.store
    state, other = OTHERS[name]
    family_to_undo(store, state)
    held = the(store, "c")
    race.run(lambda: undo(store), lambda: other(store, held))
    undo(store)
    child = the(store, "c")
    if child.state == RunState.ROLLING_BACK:
        assert child.state_after_rollback == RunState.CANCELLED
        assert child.wake_at is not None or child.lease_expires_at is not None
    else:
        assert child.state not in ENDED, "it has something left to undo"
        assert child.pending_request == Request.CANCEL_ROLLBACK
        assert child.lease_expires_at is not None, "a worker has it, and obeys"
    again = undo(store)
    assert (again.state, again.pending_request) == (child.state, child.pending_request), "it changes nothing more"
