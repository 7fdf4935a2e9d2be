"""A parent, its groups of children and its replay in place on two connections at READ COMMITTED, in every order.

No order may lose a wake-up, leave a place free while a child waits, leave a child open that the replay has taken back,
miscount, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.records import ENDED, OnFailure, OutgoingMessage, Request, RunChange, RunRecord, RunState, WhenHeld
from durable.store import Store
from tests.store.actors import Race
from tests.store.children import (
    GROUP,
    a_member,
    change,
    end,
    finish,
    grouped,
    holding,
    member,
    park_for_group,
    spec,
    waiting,
)
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, at, cancel, changed, claimed, park, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def claim(store: Store, *numbers: int) -> None:
    """Let a worker have these children."""
    for number in numbers:
        store.claim_run(member(number), now=NOW, lease_until=NOW + LEASE, worker="w")


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


def swept(store: Store) -> None:
    """Do what the sweep does about children that were left because somebody had them locked."""
    after = ""
    while (found := store.cascade(after, at(9))) is not None:
        after = found[0]


def test_the_last_two_children_end(race: Race) -> None:
    store = race.store
    grouped(store, 2)
    claim(store, 0, 1)
    race.run(lambda: end(store, 0), lambda: end(store, 1))
    group = counted(store)
    assert (the(store, "parent").wake_at is not None) == race.both_commit
    assert group.completed == sum(race.commits)


@pytest.mark.parametrize("size", [3, 5])
def test_two_children_end_while_one_waits(race: Race, size: int) -> None:
    store = race.store
    grouped(store, size)
    claim(store, 0, 1)
    race.run(lambda: end(store, 0), lambda: end(store, 1))
    group = counted(store)
    assert group.running == min(2, size - sum(race.commits))


@pytest.mark.parametrize("other", ["is held", "ends"])
def test_children_are_held_or_end_beside_each_other(race: Race, other: str) -> None:
    store = race.store
    grouped(store, 6, when_held=WhenHeld.FREE)
    claim(store, 0, 1)
    first, second = (the(store, member(number)) for number in (0, 1))
    does = partial(end, store, 1) if other == "ends" else partial(store.commit, holding(second))
    race.run(partial(store.commit, holding(first)), does)
    group = counted(store)
    assert group.held == race.a_commits + (other == "is held" and race.b_commits)
    assert group.running - group.held == 2


def test_a_held_child_is_settled_while_another_ends(race: Race) -> None:
    store = race.store
    grouped(store, 6, when_held=WhenHeld.FREE)
    claim(store, 0, 1)
    held = the(store, member(0))
    store.commit(holding(held))
    park(store, held)

    def settle() -> None:
        change = RunChange(run=transitions.settled(the(store, member(0)), now=NOW), is_held_over=True)
        store.change(member(0), lambda _row, _entries: change)

    race.run(settle, lambda: end(store, 1))
    group = counted(store)
    assert 2 <= group.running - group.held <= 3, "the settled child may be one more"
    for number in (2, 3, 4, 5, 0):
        end(store, number)
    if not race.b_commits:
        end(store, 1)
    assert counted(store).completed == 6
    assert the(store, "parent").wake_at is not None


def test_a_child_ends_while_the_parent_parks(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    change(store, held, new=spec(1), starts=[a_member(0)], created=1)
    race.run(lambda: park_for_group(store, held), lambda: end(store, 0))
    counted(store)
    if race.a_commits:
        assert (the(store, "parent").wake_at is not None) == race.b_commits


def test_a_child_ends_while_the_parent_starts_the_next(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    change(store, held, new=spec(4), starts=[a_member(0), a_member(1)], created=2)
    race.run(lambda: change(store, held, starts=[a_member(2), a_member(3)], created=4), lambda: end(store, 0))
    group = counted(store)
    assert group.created == (4 if race.a_commits else 2)
    assert group.running == min(2, group.created - race.b_commits)


def test_a_child_ends_while_the_parent_is_cancelled(race: Race) -> None:
    store = race.store
    grouped(store, 5)
    claim(store, 0)
    race.run(lambda: cancel(store, "parent"), lambda: end(store, 0))
    swept(store)
    group = counted(store)
    if race.a_commits:
        assert (group.running, group.waiting) == (not race.b_commits, 0)  # which its worker is asked to end
        assert the(store, "parent").state == RunState.CANCELLED
    else:
        assert group.running == 2


def test_the_first_failure_beside_another_end(race: Race) -> None:
    store = race.store
    grouped(store, 5, on_failure=OnFailure.STOP)
    claim(store, 0, 1)
    race.run(lambda: end(store, 0, RunState.FAILED), lambda: end(store, 1))
    group = counted(store)
    assert group.is_stopped == race.a_commits
    assert (the(store, "parent").wake_at is not None) == group.is_stopped


def stopped(store: Store, size: int, **columns: Any) -> RunRecord:
    """The parent in the hands of a worker, after the failure that has stopped its group; the other children run."""
    grouped(store, size, on_failure=OnFailure.STOP, **columns)
    end(store, 0, RunState.FAILED)
    claim(store, *range(1, min(size, 3)))
    return claimed(store, "parent")


def test_the_parent_cancels_the_rest_while_a_child_ends(race: Race) -> None:
    store = race.store
    grouped(store, 5, on_failure=OnFailure.STOP)
    end(store, 0, RunState.FAILED)
    claim(store, 1)
    held = claimed(store, "parent")
    race.run(lambda: change(store, held, is_read=True, is_dropped=True), lambda: end(store, 1))
    swept(store)
    group = counted(store)
    if race.a_commits:
        assert (group.running, group.waiting) == (not race.b_commits, 0)


def test_the_last_open_child_of_a_group_that_is_over_ends_while_the_parent_parks(race: Race) -> None:
    store = race.store
    held = stopped(store, 2)
    change(store, held, is_read=True)
    race.run(lambda: park_for_group(store, held), lambda: end(store, 1))
    counted(store)
    if race.a_commits:
        assert (the(store, "parent").wake_at is not None) == race.b_commits


def test_two_open_children_of_a_group_that_is_over_end(race: Race) -> None:
    store = race.store
    held = stopped(store, 3, at_once=None)
    change(store, held, is_read=True)
    park_for_group(store, held)
    race.run(lambda: end(store, 1), lambda: end(store, 2))
    counted(store)
    assert (the(store, "parent").wake_at is not None) == race.both_commit


def test_a_child_is_compensated_while_another_one_of_the_group_ends(race: Race) -> None:
    store = race.store
    grouped(store, 2)
    end(store, 0)
    claim(store, 1)
    undo = partial(changed, store, member(0), transitions.undone_by_parent, now=NOW, reason="", summary="")
    race.run(undo, lambda: end(store, 1))
    assert counted(store).running == race.a_commits + (not race.b_commits)


def test_a_child_that_waits_is_cancelled_while_its_turn_comes(race: Race) -> None:
    store = race.store
    grouped(store, 4)
    claim(store, 0)
    race.run(lambda: cancel(store, member(2)), lambda: end(store, 0))
    group = counted(store)
    assert group.running == 2 or group.waiting == 0


def test_a_child_ends_while_somebody_has_the_row_of_the_next(race: Race) -> None:
    store = race.store
    grouped(store, 2, at_once=1)
    claim(store, 0)
    message = OutgoingMessage(id="m", to=member(1), queue="q", body="1", sent_at=NOW)
    race.run(lambda: end(store, 0), lambda: store.send([message]))
    after = ""
    while (found := store.give_turns(after, NOW)) is not None:
        after = found[0]
    assert counted(store).waiting == (not race.a_commits), "nobody else looks for the last child that waits"
    assert (the(store, member(1)).wake_at is not None) == race.a_commits


def test_a_child_ends_while_the_parent_takes_it_out(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    change(store, held, new=spec(4), starts=[a_member(number) for number in range(4)], created=4)
    claim(store, 0)
    race.run(lambda: change(store, held, taken_out=[member(0)]), lambda: end(store, 0))
    group = counted(store)
    assert group.created == (3 if race.a_commits else 4)
    assert group.completed == (not race.a_commits and race.b_commits)
    change(store, held, is_continued=True)
    assert counted(store).running == 2, "a place is free while a child waits"


# -- the replay in place of a parent beside the ends of its children and a cancel


def family(store: Store) -> None:
    """A parent that waits for its children a and b, which workers have."""
    waiting(store, "a", "b")
    for each in "ab":
        claimed(store, each)


def replay(store: Store, *children: str, groups: tuple[str, ...] = ()) -> Callable[[], Any]:
    """A replay in place that deletes the starts of these children."""

    def decide(run: Any, _entries: Any) -> RunChange:
        patch = transitions.replayed(run, now=at(3), generations={}, summary="")
        return RunChange(run=patch, dropped_children=list(children), dropped_groups=list(groups))

    return lambda: store.change("parent", decide)


def is_ending(store: Store, run_id: str) -> bool:
    run = the(store, run_id)
    return run.state in ENDED or run.pending_request == Request.CANCEL


def test_a_child_ends_while_its_start_is_taken_back(race: Race) -> None:
    store = race.store
    family(store)
    race.run(replay(store, "a", "b"), lambda: finish(store, "a", at(1)))
    swept(store)
    parent = the(store, "parent")
    assert (the(store, "a").state == RunState.COMPLETED) == race.b_commits
    if race.a_commits:
        assert (parent.state, parent.waiting_for) == (RunState.PENDING, "")
        assert parent.wake_at in (at(1), at(3))
        assert is_ending(store, "a")
        assert is_ending(store, "b")
    else:
        assert parent.wake_at == (at(1) if race.b_commits else None)
        assert not is_ending(store, "b")


def test_a_child_that_stays_ends_while_its_parent_is_replayed(race: Race) -> None:
    """The replay deletes what came after the start: the parent waits for the child again, in a new pass."""
    store = race.store
    family(store)
    race.run(replay(store, "b"), lambda: finish(store, "a", at(1)))
    swept(store)
    assert is_ending(store, "b") == race.a_commits
    if race.a_commits:
        park(store, claimed(store, "parent", at(4)), waiting_for="/~a/", batch={"awaited_children": ["a"]})
        assert (the(store, "parent").wake_at is not None) == race.b_commits, "the end came before it parked"


def test_the_last_child_ends_while_the_parent_of_both_is_replayed(race: Race) -> None:
    store = race.store
    family(store)
    finish(store, "a", at(1))
    race.run(replay(store, "a", "b"), lambda: finish(store, "b", at(2)))
    swept(store)
    assert (the(store, "a").state, is_ending(store, "b")) == (RunState.COMPLETED, any(race.commits))
    assert the(store, "parent").wake_at is not None


def test_a_parent_is_cancelled_while_it_is_replayed(race: Race) -> None:
    store = race.store
    family(store)
    race.run(replay(store, "b"), lambda: cancel(store, "parent", at(5)))
    swept(store)
    assert is_ending(store, "b") == any(race.commits)
    parent = the(store, "parent")
    if parent.state == RunState.CANCELLED:
        assert is_ending(store, "a")
    else:
        assert parent.state == (RunState.PENDING if race.a_commits else RunState.SLEEPING)
        assert not race.b_commits or race.order.startswith("B"), "the replay came after the cancel"


@pytest.mark.parametrize("size", [2, 5])
def test_a_child_of_a_map_ends_while_the_map_is_taken_back(race: Race, size: int) -> None:
    store = race.store
    grouped(store, size)
    claim(store, 0, 1)
    if size == 2:
        end(store, 0)
    race.run(replay(store, groups=(GROUP,)), lambda: end(store, 1))
    swept(store)
    group = counted(store)
    assert (the(store, member(1)).state == RunState.COMPLETED) == race.b_commits
    if race.a_commits:
        assert group.waiting == 0
        assert all(is_ending(store, member(number)) for number in range(size))
        assert the(store, "parent").state == RunState.PENDING
    else:
        assert group.running == min(2, size - (size == 2) - race.b_commits)
        assert (the(store, "parent").wake_at is not None) == (size == 2 and race.b_commits)


def test_the_parent_of_a_map_is_cancelled_while_the_map_is_taken_back(race: Race) -> None:
    store = race.store
    grouped(store, 5)
    race.run(replay(store, groups=(GROUP,)), lambda: cancel(store, "parent", at(5)))
    swept(store)
    group = counted(store)
    expected = (0, 0, 5) if any(race.commits) else (2, 3, 0)
    assert (group.running, group.waiting, group.cancelled) == expected


def test_a_parent_is_cancelled_while_it_starts_a_batch_of_a_map(race: Race) -> None:
    store = race.store
    held = started(store, "parent")
    change(store, held, new=spec(4), starts=[a_member(0), a_member(1)], created=2)
    begun, _ = race.run(
        lambda: change(store, held, starts=[a_member(2), a_member(3)], created=4),
        lambda: cancel(store, "parent", at(5)),
    )
    swept(store)
    group = counted(store)
    assert group.created == (4 if begun != "refused" and race.a_commits else 2)
    if race.b_commits:
        assert (group.running, group.waiting, group.cancelled) == (0, 0, group.created)
    else:
        assert group.cancelled == 0
