"""A parent, its groups of children and its replay in place on two connections at READ COMMITTED, in every order.

Each transaction is a statement and an end, as in `test_child_interleavings`. No order may lose a wake-up, leave a place
free while a child waits, leave a child open that the replay has taken back, miscount, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.errors import InvalidTransitionError
from durable.core.location import child_token
from durable.core.records import ENDED, OnFailure, OutgoingMessage, Request, RunChange, RunState, WhenHeld
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.family import a_child, finish, start_children
from tests.store.group_family import GROUP, a_member, change, end, grouped, holding, spec
from tests.store.making import LEASE, NOW, at, park, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


TABLES = (
    "durable_queuemessage",
    "durable_turn",
    "durable_grouptally",
    "durable_childgroup",
    "durable_cascade",
    "durable_child",
    "durable_run",
)


OF_HELD = ("durable_failure", "durable_entrymetadata", "durable_entry")


def claimed(store: Store, *numbers: int) -> None:
    """Let a worker have these children."""
    for number in numbers:
        store.claim_run(f"{GROUP}:{number}", now=NOW, lease_until=NOW + LEASE, worker="w")


def counted(store: Store) -> Any:
    """The counts of the group, which equal a recount by the rows of its children."""
    group = store.group(GROUP)
    assert group is not None
    members = store.members(GROUP, -1, 100)
    states = [each.state for each in members]
    for state in sorted(ENDED):
        assert getattr(group, state) == states.count(state), state
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM durable_turn")
        [waiting] = cursor.fetchone()
    assert group.waiting == waiting
    assert group.running == sum(each.state not in ENDED for each in members) - waiting
    return group


def cancel(store: Store, run_id: str) -> None:
    store.change(
        run_id, lambda run, _: RunChange(run=transitions.cancelled_at_once(run, now=NOW, reason="", summary=""))
    )


def swept(store: Store) -> None:
    """Do what the sweep does about children that were left because somebody had them locked."""
    after = ""
    while (found := store.cascade(after, NOW)) is not None:
        after = found[0]


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_two_children_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 2)
        claimed(store, 0, 1)
        both(pools, order, ends, lambda: end(store, 0), lambda: end(store, 1))
        group = counted(store)
        assert (the(store, "parent").wake_at is not None) == (ends == ("COMMIT", "COMMIT"))
        assert group.completed == ends.count("COMMIT")


@pytest.mark.parametrize("order", ORDERS)
def test_two_children_end_while_one_waits(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for size, ends in product((3, 5), product(ENDS, ENDS)):
        empty(POSTGRES, *TABLES)
        grouped(store, size)
        claimed(store, 0, 1)
        both(pools, order, ends, lambda: end(store, 0), lambda: end(store, 1))
        group = counted(store)
        assert group.running == min(2, size - ends.count("COMMIT"))


@pytest.mark.parametrize("order", ORDERS)
def test_children_are_held_or_end_beside_each_other(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for other, ends in product(("is held", "ends"), product(ENDS, ENDS)):
        empty(POSTGRES, *OF_HELD, *TABLES)
        grouped(store, 6, when_held=WhenHeld.FREE)
        claimed(store, 0, 1)
        first, second = (the(store, f"{GROUP}:{number}") for number in (0, 1))

        def does(second: Any = second, other: str = other) -> None:
            if other == "ends":
                end(store, 1)
            else:
                store.commit(holding(second))

        both(pools, order, ends, partial(store.commit, holding(first)), does)
        group = counted(store)
        assert group.held == (ends[0] == "COMMIT") + (other == "is held" and ends[1] == "COMMIT")
        assert group.running - group.held == 2


@pytest.mark.parametrize("order", ORDERS)
def test_a_held_child_is_settled_while_another_ends(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *OF_HELD, *TABLES)
        grouped(store, 6, when_held=WhenHeld.FREE)
        claimed(store, 0, 1)
        held = the(store, f"{GROUP}:0")
        store.commit(holding(held))
        park(store, held)

        def settle() -> None:
            change = RunChange(run=transitions.settled(the(store, f"{GROUP}:0"), now=NOW), is_held_over=True)
            store.change(f"{GROUP}:0", lambda _row, _entries: change)

        both(pools, order, ends, settle, lambda: end(store, 1))
        group = counted(store)
        assert 2 <= group.running - group.held <= 3, "the settled child may be one more"
        for number in (2, 3, 4, 5, 0):
            end(store, number)
        if ends[1] == "ROLLBACK":
            end(store, 1)
        assert counted(store).completed == 6
        assert the(store, "parent").wake_at is not None


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_the_parent_parks(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        change(store, held, new=spec(1), starts=[a_member(0)], created=1)

        def parks(held: Any = held) -> None:
            park(store, held, waiting_for=f"/{child_token(GROUP)}/", batch={"awaited_groups": [GROUP]})

        both(pools, order, ends, parks, lambda: end(store, 0))
        counted(store)
        if ends == ("COMMIT", "COMMIT"):
            assert the(store, "parent").wake_at is not None
        elif ends[0] == "COMMIT":
            assert the(store, "parent").wake_at is None


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_the_parent_starts_the_next(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        change(store, held, new=spec(4), starts=[a_member(0), a_member(1)], created=2)

        def starts(held: Any = held) -> None:
            change(store, held, starts=[a_member(2), a_member(3)], created=4)

        both(pools, order, ends, starts, lambda: end(store, 0))
        group = counted(store)
        assert group.created == (4 if ends[0] == "COMMIT" else 2)
        assert group.running == min(2, group.created - ends[1:].count("COMMIT"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_the_parent_is_cancelled(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 5)
        claimed(store, 0)
        both(pools, order, ends, lambda: cancel(store, "parent"), lambda: end(store, 0))
        swept(store)
        group = counted(store)
        if ends[0] == "COMMIT":
            assert (group.running, group.waiting) == (ends[1:].count("ROLLBACK"), 0)  # which its worker is asked to end
            assert the(store, "parent").state == RunState.CANCELLED
        else:
            assert group.running == 2


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_failure_beside_another_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 5, on_failure=OnFailure.STOP)
        claimed(store, 0, 1)
        both(pools, order, ends, lambda: end(store, 0, RunState.FAILED), lambda: end(store, 1))
        group = counted(store)
        assert group.is_stopped == (ends[0] == "COMMIT")
        assert (the(store, "parent").wake_at is not None) == group.is_stopped


@pytest.mark.parametrize("order", ORDERS)
def test_the_parent_cancels_the_rest_while_a_child_ends(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 5, on_failure=OnFailure.STOP)
        end(store, 0, RunState.FAILED)
        claimed(store, 1)
        held = store.claim_run("parent", now=NOW, lease_until=NOW + LEASE, worker="w")

        def drops(held: Any = held) -> None:
            change(store, held, is_read=True, is_dropped=True)

        both(pools, order, ends, drops, lambda: end(store, 1))
        swept(store)
        group = counted(store)
        if ends[0] == "COMMIT":
            assert (group.running, group.waiting) == (ends[1:].count("ROLLBACK"), 0)


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_open_child_of_a_group_that_is_over_ends_while_the_parent_parks(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 2, on_failure=OnFailure.STOP)
        end(store, 0, RunState.FAILED)
        claimed(store, 1)
        held = store.claim_run("parent", now=NOW, lease_until=NOW + LEASE, worker="w")
        assert held is not None
        change(store, held, is_read=True)

        def parks(held: Any = held) -> None:
            park(store, held, waiting_for=f"/{child_token(GROUP)}/", batch={"awaited_groups": [GROUP]})

        both(pools, order, ends, parks, lambda: end(store, 1))
        counted(store)
        if ends == ("COMMIT", "COMMIT"):
            assert the(store, "parent").wake_at is not None
        elif ends[0] == "COMMIT":
            assert the(store, "parent").wake_at is None


@pytest.mark.parametrize("order", ORDERS)
def test_two_open_children_of_a_group_that_is_over_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 3, at_once=None, on_failure=OnFailure.STOP)
        end(store, 0, RunState.FAILED)
        claimed(store, 1, 2)
        held = store.claim_run("parent", now=NOW, lease_until=NOW + LEASE, worker="w")
        assert held is not None
        change(store, held, is_read=True)
        park(store, held, waiting_for=f"/{child_token(GROUP)}/", batch={"awaited_groups": [GROUP]})
        both(pools, order, ends, lambda: end(store, 1), lambda: end(store, 2))
        counted(store)
        assert (the(store, "parent").wake_at is not None) == (ends == ("COMMIT", "COMMIT"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_is_compensated_while_another_one_of_the_group_ends(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 2)
        end(store, 0)
        claimed(store, 1)

        def undoes() -> None:
            store.change(
                f"{GROUP}:0",
                lambda run, _: RunChange(run=transitions.undone_by_parent(run, now=NOW, reason="", summary="")),
            )

        both(pools, order, ends, undoes, lambda: end(store, 1))
        assert counted(store).running == ends[:1].count("COMMIT") + ends[1:].count("ROLLBACK")


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_that_waits_is_cancelled_while_its_turn_comes(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 4)
        claimed(store, 0)
        both(pools, order, ends, lambda: cancel(store, f"{GROUP}:2"), lambda: end(store, 0))
        group = counted(store)
        assert group.running == 2 or group.waiting == 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_somebody_has_the_row_of_the_next(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        grouped(store, 2, at_once=1)
        claimed(store, 0)
        message = OutgoingMessage(id="m", to=f"{GROUP}:1", queue="q", body="1", sent_at=NOW)
        both(pools, order, ends, lambda: end(store, 0), partial(store.send, [message]))
        after = ""
        while (found := store.give_turns(after, NOW)) is not None:
            after = found[0]
        has_ended = ends[0] == "COMMIT"
        assert counted(store).waiting == (not has_ended), "nobody else looks for the last child that waits"
        assert (the(store, f"{GROUP}:1").wake_at is not None) == has_ended


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_ends_while_the_parent_takes_it_out(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        held = started(store, "parent")
        change(store, held, new=spec(4), starts=[a_member(number) for number in range(4)], created=4)
        claimed(store, 0)
        lost = f"{GROUP}:0"

        def takes_out(held: Any = held, lost: str = lost) -> None:
            change(store, held, taken_out=[lost])

        both(pools, order, ends, takes_out, lambda: end(store, 0))
        group = counted(store)
        is_out = ends[0] == "COMMIT"
        assert group.created == (3 if is_out else 4)
        assert group.completed == (0 if is_out else ends[1:].count("COMMIT"))
        change(store, held, is_continued=True)
        assert counted(store).running == 2, "a place is free while a child waits"


# -- the replay in place of a parent beside the ends of its children and a cancel, on two connections at READ COMMITTED


TABLES_OF_REPLAY = (
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


def cancel_replayed(store: Store, run_id: str) -> str:
    try:
        store.change(
            run_id, lambda run, _: RunChange(run=transitions.cancelled_at_once(run, now=at(5), reason="", summary=""))
        )
    except InvalidTransitionError:
        return "refused"
    return "done"


def swept_replayed(store: Store) -> None:
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        family(store, "a", "b")
        both(pools, order, ends, replay(store, "a", "b"), lambda: finish(store, "a", at(1)))
        swept_replayed(store)
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        family(store, "a", "b")
        both(pools, order, ends, replay(store, "b"), lambda: finish(store, "a", at(1)))
        swept_replayed(store)
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        family(store, "a", "b")
        finish(store, "a", at(1))
        both(pools, order, ends, replay(store, "a", "b"), lambda: finish(store, "b", at(2)))
        swept_replayed(store)
        assert (the(store, "a").state, is_ending(store, "b")) == (RunState.COMPLETED, "COMMIT" in ends)
        assert the(store, "parent").wake_at is not None


@pytest.mark.parametrize("order", ORDERS)
def test_a_parent_is_cancelled_while_it_is_replayed(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES_OF_REPLAY)
        family(store, "a", "b")
        actors = both(pools, order, ends, replay(store, "b"), lambda: cancel_replayed(store, "parent"))
        swept_replayed(store)
        assert actors["B"].outcome == "done"
        assert is_ending(store, "b") == ("COMMIT" in ends)
        parent = the(store, "parent")
        if parent.state == RunState.CANCELLED:
            assert is_ending(store, "a")
        else:
            assert parent.state == (RunState.PENDING if ends[0] == "COMMIT" else RunState.SLEEPING)
            assert ends[1] == "ROLLBACK" or order.startswith("B"), "the replay came after the cancel"


# -- with a map


def counted_replayed(store: Store) -> Any:
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        grouped(store, size)
        for number in (0, 1):
            store.claim_run(f"{GROUP}:{number}", now=NOW, lease_until=NOW + LEASE, worker="w")
        if size == 2:
            end(store, 0)
        both(pools, order, ends, replay(store, groups=(GROUP,)), lambda: end(store, 1))
        swept_replayed(store)
        group = counted_replayed(store)
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        grouped(store, 5)
        both(pools, order, ends, replay(store, groups=(GROUP,)), lambda: cancel_replayed(store, "parent"))
        swept_replayed(store)
        group = counted_replayed(store)
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
        empty(POSTGRES, *TABLES_OF_REPLAY)
        held = started(store, "parent")
        change(store, held, new=spec(4), starts=[a_member(0), a_member(1)], created=2)

        def starts(held: Any = held) -> None:
            change(store, held, starts=[a_member(2), a_member(3)], created=4)

        actors = both(pools, order, ends, starts, lambda: cancel_replayed(store, "parent"))
        swept_replayed(store)
        group = counted_replayed(store)
        has_started = actors["A"].outcome != "refused" and ends[0] == "COMMIT"
        assert group.created == (4 if has_started else 2)
        if ends[1] == "COMMIT":
            assert (group.running, group.waiting, group.cancelled) == (0, 0, group.created)
        else:
            assert group.cancelled == 0
