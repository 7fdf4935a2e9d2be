"""The replay in place of a parent beside the ends of its children and a cancel, on two connections at READ COMMITTED.

Each transaction is a statement and an end, as in `test_child_interleavings`. No order may leave a child open that the
replay has taken back, lose the wake-up of a parent that waits again, miscount a group, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from durable.core import transitions
from durable.core.errors import InvalidTransitionError
from durable.core.records import ENDED, Request, RunChange, RunState
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.family import a_child, finish, start_children
from tests.store.group_family import GROUP, a_member, change, end, grouped, spec
from tests.store.making import LEASE, NOW, at, park, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

TABLES = (
    "durable_turn",
    "durable_grouptally",
    "durable_childgroup",
    "durable_cascade",
    "durable_child",
    "durable_runkey",
    "durable_run",
)


def family(store: Store, *children: str) -> None:
    """A parent that waits for its children, which workers have."""
    held = started(store, "parent")
    start_children(store, held, *(a_child(each) for each in children))
    waits = "/" + "".join(f"~{each}/" for each in children)
    park(store, held, waiting_for=waits, batch={"awaited_children": children})
    for each in children:
        store.claim_run(each, now=NOW, lease_until=NOW + LEASE, worker="w")


def replay(store: Store, *children: str, groups: tuple[str, ...] = ()) -> Callable[[], Any]:
    """A replay in place that deletes the starts of these children."""

    def replaying() -> Any:
        def decide(run: Any, _entries: Any) -> RunChange:
            patch = transitions.replayed(run, now=at(3), generations={}, summary="")
            return RunChange(run=patch, dropped_children=list(children), dropped_groups=list(groups))

        return store.change("parent", decide)

    return replaying


def cancel(store: Store, run_id: str) -> str:
    try:
        store.change(
            run_id, lambda run, _: RunChange(run=transitions.cancelled_at_once(run, now=at(5), reason="", summary=""))
        )
    except InvalidTransitionError:
        return "refused"
    return "done"


def swept(store: Store) -> None:
    """Do what the sweep does about children that were left because another transaction had them locked."""
    after = ""
    while (found := store.cascade(after, at(9))) is not None:
        after = found[0]


def is_ending(store: Store, run_id: str) -> bool:
    run = the(store, run_id)
    return run.state in ENDED or run.pending_request == Request.CANCEL


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_its_start_is_taken_back(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a", "b")
        both(pools, order, ends, replay(store, "a", "b"), lambda: finish(store, "a", at(1)))
        swept(store)
        parent = the(store, "parent")
        assert (the(store, "a").state == RunState.COMPLETED) == (ends[1] == "COMMIT")
        if ends[0] == "COMMIT":
            assert (parent.state, parent.waiting_for) == (RunState.PENDING, "")
            assert parent.wake_at in (at(1), at(3))
            assert is_ending(store, "a")
            assert is_ending(store, "b")
        else:
            assert parent.wake_at == (at(1) if ends[1] == "COMMIT" else None)
            assert not is_ending(store, "b")


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_that_stays_ends_while_its_parent_is_replayed(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    """The replay deletes what came after the start: the parent waits for the child again, in a new pass."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a", "b")
        both(pools, order, ends, replay(store, "b"), lambda: finish(store, "a", at(1)))
        swept(store)
        assert is_ending(store, "b") == (ends[0] == "COMMIT")
        if ends[0] == "COMMIT":
            held = store.claim_run("parent", now=at(4), lease_until=at(40), worker="w")
            assert held is not None
            park(store, held, waiting_for="/~a/", batch={"awaited_children": ["a"]})
            assert (the(store, "parent").wake_at is not None) == (ends[1] == "COMMIT"), "the end came before it parked"


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_child_ends_while_the_parent_of_both_is_replayed(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a", "b")
        finish(store, "a", at(1))
        both(pools, order, ends, replay(store, "a", "b"), lambda: finish(store, "b", at(2)))
        swept(store)
        assert (the(store, "a").state, is_ending(store, "b")) == (RunState.COMPLETED, "COMMIT" in ends)
        assert the(store, "parent").wake_at is not None


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_is_cancelled_while_it_is_replayed(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        family(store, "a", "b")
        actors = both(pools, order, ends, replay(store, "b"), lambda: cancel(store, "parent"))
        swept(store)
        assert actors["B"].outcome == "done"
        assert is_ending(store, "b") == ("COMMIT" in ends)
        parent = the(store, "parent")
        if parent.state == RunState.CANCELLED:
            assert is_ending(store, "a")
        else:
            assert parent.state == (RunState.PENDING if ends[0] == "COMMIT" else RunState.SLEEPING)
            assert ends[1] == "ROLLBACK" or order.startswith("B"), "the replay came after the cancel"


# -- with a map


def counted(store: Store) -> Any:
    """The counts of the group, which equal a recount by the rows of its children."""
    group = store.group(GROUP)
    assert group is not None
    states = [each.state for each in store.members(GROUP, -1, 100)]
    for state in sorted(ENDED):
        assert getattr(group, state) == states.count(state), state
    assert group.created == group.waiting + group.running + sum(state in ENDED for state in states)
    return group


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [2, 5])
def test_a_child_of_a_map_ends_while_the_map_is_taken_back(
    postgres_store: PostgresStore, pools: Pools, order: str, size: int
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, size)
        for number in (0, 1):
            store.claim_run(f"{GROUP}:{number}", now=NOW, lease_until=NOW + LEASE, worker="w")
        if size == 2:
            end(store, 0)
        both(pools, order, ends, replay(store, groups=(GROUP,)), lambda: end(store, 1))
        swept(store)
        group = counted(store)
        assert (the(store, f"{GROUP}:1").state == RunState.COMPLETED) == (ends[1] == "COMMIT")
        if ends[0] == "COMMIT":
            assert group.waiting == 0
            assert all(is_ending(store, f"{GROUP}:{number}") for number in range(size))
            assert the(store, "parent").state == RunState.PENDING
        else:
            assert group.running == min(2, size - (size == 2) - ends[1:].count("COMMIT"))
            assert (the(store, "parent").wake_at is not None) == (size == 2 and ends[1] == "COMMIT")


@pytest.mark.parametrize("order", ORDERS)
def test_the_parent_of_a_map_is_cancelled_while_the_map_is_taken_back(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 5)
        both(pools, order, ends, replay(store, groups=(GROUP,)), lambda: cancel(store, "parent"))
        swept(store)
        group = counted(store)
        if "COMMIT" in ends:
            assert (group.running, group.waiting, group.cancelled) == (0, 0, 5)
        else:
            assert (group.running, group.waiting) == (2, 3)


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_is_cancelled_while_it_starts_a_batch_of_a_map(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        change(store, held, new=spec(4), starts=[a_member(0), a_member(1)], created=2)

        def starts(held: Any = held) -> None:
            change(store, held, starts=[a_member(2), a_member(3)], created=4)

        actors = both(pools, order, ends, starts, lambda: cancel(store, "parent"))
        swept(store)
        group = counted(store)
        has_started = actors["A"].outcome != "refused" and ends[0] == "COMMIT"
        assert group.created == (4 if has_started else 2)
        if ends[1] == "COMMIT":
            assert (group.running, group.waiting, group.cancelled) == (0, 0, group.created)
        else:
            assert group.cancelled == 0
