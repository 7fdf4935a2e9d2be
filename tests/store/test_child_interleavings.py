"""A parent and its children on two connections at READ COMMITTED: every order of two transactions, on real locks.

Each transaction is a statement and an end, as in `test_interleavings`. No order may lose a wake-up, leave a child open
under a parent that has ended, or deadlock.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.records import ENDED, RunChange, RunState
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Actor, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.family import a_child, finish, start_children
from tests.store.making import LEASE, NOW, a_message, a_run, at, commit, park, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

TABLES = ("durable_queuemessage", "durable_cascade", "durable_child", "durable_run")


def family(store: Store, *children: str, is_parked: bool = True) -> Any:
    held = started(store, "parent")
    start_children(store, held, *(a_child(each) for each in children))
    if is_parked:
        park(
            store,
            held,
            waiting_for="/" + "".join(f"~{each}/" for each in children),
            batch={"awaited_children": children},
        )
    for each in children:
        store.claim_run(each, now=NOW, lease_until=NOW + LEASE, worker="w")
    return the(store, "parent")


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_parks_while_its_child_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = family(store, "a", is_parked=False)
        both(
            pools,
            order,
            ends,
            lambda held=held: park(store, held, waiting_for="/~a/", batch={"awaited_children": ["a"]}),  # type: ignore[misc]  # bound
            lambda: finish(store, "a", at(1)),
        )
        parent = the(store, "parent")
        if ends == ("COMMIT", "COMMIT"):
            assert parent.state == RunState.SLEEPING
            assert parent.wake_at is not None, ends
        elif ends[0] == "COMMIT":
            assert the(store, "a").state == RunState.RUNNING
            assert parent.wake_at is None, ends


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_two_children_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a", "b")
        both(pools, order, ends, lambda: finish(store, "a", at(1)), lambda: finish(store, "b", at(2)))
        expected = at(1) if ends[0] == "COMMIT" else at(2) if ends[1] == "COMMIT" else None
        assert the(store, "parent").wake_at == expected


def cancel(store: Store, run_id: str) -> None:
    store.change(
        run_id, lambda run, _: RunChange(run=transitions.cancelled_at_once(run, now=at(5), reason="", summary=""))
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_is_cancelled_while_it_starts_a_child(
    postgres_store: PostgresStore,
    pools: Pools,
    order: str,
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        both(
            pools,
            order,
            ends,
            lambda held=held: start_children(store, held, a_child("a")),  # type: ignore[misc]  # bound
            lambda: cancel(store, "parent"),
        )
        child = store.get("a")
        if ends[1] == "COMMIT":
            assert the(store, "parent").state == RunState.CANCELLED
            assert child is None or child.state == RunState.CANCELLED
        else:
            assert (child is not None) == (ends[0] == "COMMIT")


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_and_its_child_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a")
        both(pools, order, ends, lambda: cancel(store, "parent"), lambda: finish(store, "a", at(1)))
        parent, child = the(store, "parent"), the(store, "a")
        if ends == ("COMMIT", "COMMIT"):
            assert {parent.state, child.state} <= ENDED
            assert child.state == RunState.COMPLETED
        elif ends[0] == "COMMIT":
            assert child.pending_request == "cancel" or store.cascade("", at(2)) == ("parent", 1)
            assert the(store, "a").pending_request == "cancel"
        elif ends[1] == "COMMIT":
            assert parent.wake_at == at(1)
        store.cascade("", at(3))
        assert store.cascade("", at(4)) is None or ends[0] == "ROLLBACK"


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_is_claimed_while_its_parent_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        start_children(store, held, a_child("a"))
        both(
            pools,
            order,
            ends,
            lambda: cancel(store, "parent"),
            lambda: store.claim(queues=["q"], now=at(61), lease_until=at(120), worker="w", limit=5),
        )
        if ends[0] == "COMMIT":
            store.cascade("", at(62))
            child = the(store, "a")
            assert child.state == RunState.CANCELLED or child.pending_request == "cancel"


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_is_recovered_while_the_sweep_ends_its_children(
    postgres_store: PostgresStore,
    pools: Pools,
    order: str,
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
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
        actors = both(
            pools,
            order,
            ends,
            lambda: store.cascade("", at(1)),
            lambda: store.change(
                "parent",
                lambda run, _: RunChange(run=transitions.recovered(run, now=at(2), generations={}, summary="")),
            ),
        )
        is_cancelled = the(store, "a").state == RunState.CANCELLED
        assert is_cancelled == (actors["A"].outcome == ("parent", 1) and ends[0] == "COMMIT")
        if ends[1] == "COMMIT":
            assert the(store, "parent").state == RunState.PENDING
            store.cascade("", at(3))
            assert the(store, "a").state == (RunState.CANCELLED if is_cancelled else RunState.PENDING)
            assert store.cascade("", at(4)) is None


def cancelled(run: Any) -> RunChange:
    return RunChange(run=transitions.cancelled_at_once(run, now=at(5), reason="", summary=""))


@pytest.mark.parametrize(("parent_id", "child_id"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("end", ENDS)
def test_a_parent_sends_to_its_child_while_that_ends(
    postgres_store: PostgresStore, pools: Pools, parent_id: str, child_id: str, end: str
) -> None:
    """The end has the child's row when the parent asks for it, and then asks for the parent's row.

    That is a deadlock if the parent's commit has locked its own row.
    """
    store = postgres_store
    empty(POSTGRES, *TABLES)
    held = started(store, parent_id)
    start_children(store, held, a_child(child_id, parent_id, created_at=at(1), wake_at=None))
    sends = [a_message(child_id)]
    sender = Actor(pools[0], "sender", lambda: commit(store, held, sends=sends), "COMMIT")

    def decide(run: Any, _entries: Any) -> RunChange:
        assert sender.act("A") == "waits"
        return cancelled(run)

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
def test_a_child_sends_in_its_last_commit_to_a_run_that_its_parent_sends_to(
    postgres_store: PostgresStore, pools: Pools, other_id: str
) -> None:
    store = postgres_store
    for other_since in (at(-10), at(10)):
        empty(POSTGRES, *TABLES)
        store.create([a_run(other_id, created_at=other_since)])
        held = started(store, "parent")
        start_children(store, held, a_child("child", created_at=at(1)))
        child = store.claim_run("child", now=NOW, lease_until=NOW + LEASE, worker="w")
        assert child is not None
        done: Any = transitions.completed(child, now=at(2), output="1")
        last = {"run": done, "parent_id": "parent", "sends": [a_message(other_id)]}
        sends = [a_message(other_id)]
        with ThreadPoolExecutor(1) as pool:
            blocker = Actor(pool, "blocker", lambda: store._lock_run(other_id), "ROLLBACK")
            assert blocker.act("C") == "done"
            ending = Actor(pools[1], "end", lambda: commit(store, child, **last), "COMMIT")  # noqa: B023
            assert ending.act("B") == "waits"
            sender = Actor(pools[0], "sender", lambda: commit(store, held, sends=sends), "COMMIT")  # noqa: B023
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
