"""The compensation of a child and whatever else happens to the child, on two connections at READ COMMITTED.

Whatever the order, the question of the parent, repeated as its next pass repeats it, leaves a child that compensates,
is asked to, or has nothing left to undo; no order is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from durable.core import transitions
from durable.core.children.rollback import change_of
from durable.core.errors import InvalidTransitionError
from durable.core.records import ENDED, Batch, EntryStatus, Request, RunChange, RunRecord, RunState
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Actor, Pools, play
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.family import a_child, finish, start_children
from tests.store.making import LEASE, NOW, an_entry, at, park, started, the
from tests.support.transitions import CALLS

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

TABLES = ("durable_entrymetadata", "durable_entry", "durable_cascade", "durable_child", "durable_run")


def family(store: PostgresStore, state: str) -> None:
    """A parent that waits for its child, which has one step with a handler left to run, in this state."""
    held = started(store, "parent")
    start_children(store, held, a_child("c"))
    park(store, held, waiting_for="/~c/", batch={"awaited_children": ["c"]})
    child = store.claim_run("c", now=NOW, lease_until=NOW + LEASE, worker="w")
    assert child is not None
    done = an_entry("charge", status=EntryStatus.COMPLETED, finished_ordinal=9, data={"rollback": {"handler": "m:f"}})
    store.commit(Batch(run_id="c", fence=child.fence, now=NOW, entries=[done]))
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
        store.change("c", lambda run, _entries: RunChange(run=CALLS[transition](run)))
    except (AssertionError, InvalidTransitionError, ValueError):  # the state is another by now
        return "refused"
    return "done"


def undo(store: Store) -> RunRecord:
    return store.change("c", lambda run, entries: change_of(run, entries, "parent", at(3)))


def end_by_its_worker(store: PostgresStore) -> Callable[[], Any]:
    held = the(store, "c")

    def end() -> str:
        patch = transitions.completed(held, now=at(1), output="1")
        store.commit(Batch(run_id="c", fence=held.fence, now=at(1), run=patch, parent_id="parent"))
        return "done"

    return end


def claim(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.claim_run("c", now=NOW, lease_until=NOW + LEASE, worker="x")


OTHERS: dict[str, tuple[str, Callable[[PostgresStore], Callable[[], Any]]]] = {
    "its worker ends it": (RunState.RUNNING, end_by_its_worker),
    "an operator cancels it": (RunState.SLEEPING, lambda store: lambda: call(store, "cancelled_at_once")),
    "a worker claims it": (RunState.PENDING, claim),
    "it is recovered": (RunState.FAILED, lambda store: lambda: call(store, "recovered")),
    "its worker has it, an operator asks": (RunState.RUNNING, lambda store: lambda: call(store, "cancel_requested")),
    "another pass of the parent asks too": (RunState.COMPLETED, lambda store: lambda: undo(store)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", OTHERS)
def test_a_child_is_undone_while(postgres_store: PostgresStore, pools: Pools, order: str, name: str) -> None:
    store = postgres_store
    state, other = OTHERS[name]
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, state)
        a, b = pools
        actors = {"A": Actor(a, "A", lambda: undo(store), ends[0]), "B": Actor(b, "B", other(store), ends[1])}
        print(", ".join(play(order, actors)))
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
