"""The place of a child of a map whose step is held: kept, or free for the next child, as each store counts it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.records import (
    ENDED,
    Committed,
    GroupRecord,
    OnFailure,
    RunChange,
    RunRecord,
    RunState,
    WhenHeld,
)
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.rules import families
from tests.store.conftest import POSTGRES
from tests.store.group_family import GROUP, end, grouped, holding
from tests.store.making import LEASE, NOW, at, park, the

FREE = {"when_held": WhenHeld.FREE}


def child(number: int) -> str:
    return f"{GROUP}:{number}"


def claim(store: Store, number: int) -> RunRecord:
    run = store.claim_run(child(number), now=NOW, lease_until=NOW + LEASE, worker="w")
    assert run is not None
    return run


def hold(store: Store, number: int) -> Committed:
    run = claim(store, number)
    committed = store.commit(holding(run))
    park(store, run)
    return committed


def settle(store: Store, number: int) -> RunRecord:
    return store.change(
        child(number), lambda row, _: RunChange(run=transitions.settled(row, now=NOW), is_held_over=True)
    )


def begun(store: Store) -> list[int]:
    """The children that have had their turn, ended or not."""
    members = store.members(GROUP, -1, 100)
    return [each.position - 10 for each in members if the(store, each.run_id).wake_at or the(store, each.run_id).fence]


def counted(store: Store) -> GroupRecord:
    """The counts of the group, which equal a recount by the rows of its children."""
    group = store.group(GROUP)
    assert group is not None
    states = [each.state for each in store.members(GROUP, -1, 100)]
    for state in sorted(ENDED):
        assert getattr(group, state) == states.count(state), state
    assert group.running + group.waiting == sum(state not in ENDED for state in states)
    return group


def test_a_held_child_keeps_its_place(store: Store) -> None:
    grouped(store, 5)
    hold(store, 0)
    assert begun(store) == [0, 1]
    assert (counted(store).running, counted(store).held) == (2, 0)
    end(store, 1)
    assert begun(store) == [0, 1, 2]


def test_the_place_of_a_held_child_goes_to_the_next_one(store: Store) -> None:
    grouped(store, 5, **FREE)
    committed = hold(store, 0)
    assert begun(store) == [0, 1, 2]
    assert committed.queues_to_notify == {"q"}
    assert (counted(store).running, counted(store).waiting, counted(store).held) == (3, 2, 1)
    hold(store, 1)
    hold(store, 2)
    assert begun(store) == [0, 1, 2, 3, 4]
    assert (counted(store).running, counted(store).held) == (5, 3)


def test_an_end_beside_a_held_child_gives_one_place(store: Store) -> None:
    grouped(store, 6, **FREE)
    hold(store, 0)
    end(store, 1)
    assert begun(store) == [0, 1, 2, 3]
    end(store, 2)
    assert begun(store) == [0, 1, 2, 3, 4]


def test_a_settled_child_goes_on_at_once_and_the_next_end_makes_up_for_it(store: Store) -> None:
    grouped(store, 6, **FREE)
    hold(store, 0)
    assert settle(store, 0).wake_at == NOW
    assert (counted(store).running, counted(store).held) == (3, 0), "one more than at_once"
    end(store, 1)
    assert begun(store) == [0, 1, 2], "as many go on as may"
    end(store, 0)
    assert begun(store) == [0, 1, 2, 3]


def test_a_child_that_is_held_again_gives_its_place_once_more(store: Store) -> None:
    grouped(store, 6, **FREE)
    hold(store, 0)
    settle(store, 0)
    hold(store, 0)
    assert begun(store) == [0, 1, 2], "the next one has begun when it was held first"
    end(store, 1)
    assert begun(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED])
def test_the_end_of_a_held_child_gives_no_second_place(store: Store, state: RunState) -> None:
    grouped(store, 6, **FREE)
    hold(store, 0)
    if state != RunState.CANCELLED:
        settle(store, 0)
    end(store, 0, state)
    assert begun(store) == [0, 1, 2]
    assert (counted(store).running, counted(store).held) == (2, 0)


def test_a_group_is_not_over_while_a_child_is_held(store: Store) -> None:
    grouped(store, 3, **FREE)
    hold(store, 0)
    for number in (1, 2):
        end(store, number)
    assert the(store, "parent").wake_at is None
    settle(store, 0)
    end(store, 0)
    assert the(store, "parent").wake_at is not None


def test_a_stopped_group_gives_no_place(store: Store) -> None:
    grouped(store, 6, on_failure=OnFailure.STOP, **FREE)
    end(store, 1, RunState.FAILED)
    hold(store, 0)
    assert begun(store) == [0, 1]


def test_a_recovered_child_waits_unless_the_place_of_a_held_one_is_free(store: Store) -> None:
    grouped(store, 4, **FREE)
    end(store, 0, RunState.FAILED)
    hold(store, 1)
    assert begun(store) == [0, 1, 2, 3]
    end(store, 2)

    def recover(row: RunRecord, _: Any) -> RunChange:
        return RunChange(run=transitions.recovered(row, now=NOW, generations={}, summary=""))

    assert store.change(child(0), recover).wake_at == NOW
    assert (counted(store).running, counted(store).waiting) == (3, 0)


def test_a_refused_commit_gives_no_place(store: Store) -> None:
    grouped(store, 5, **FREE)
    run = claim(store, 0)
    stale = holding(run)
    store.release([(run.id, run.fence)], NOW)
    assert store.claim_run(run.id, now=at(1), lease_until=at(1) + LEASE, worker="other") is not None
    with pytest.raises(LeaseLost):
        store.commit(stale)
    assert begun(store) == [0, 1]


@pytest.mark.postgres
def test_a_child_whose_row_is_locked_has_its_turn_with_the_sweep(postgres_store: PostgresStore) -> None:
    """The commit passes it over, and the sweep counts the held child too."""
    grouped(postgres_store, 3, **FREE)
    other = connections.create_connection(POSTGRES)
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM durable_run WHERE id = %s FOR UPDATE", [child(2)])
        hold(postgres_store, 0)
        assert begun(postgres_store) == [0, 1]
        other.rollback()
    finally:
        other.close()
    with transaction.atomic(using=POSTGRES):
        assert postgres_store.give_turns("", NOW + timedelta(seconds=1)) == (GROUP, frozenset({"q"}))
    assert begun(postgres_store) == [0, 1, 2]


def test_the_place_is_free_with_the_commit_that_holds_the_step_or_not_at_all(
    database_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped(database_store, 5, **FREE)
    run = claim(database_store, 0)

    def die(*_args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(families, "freed", die)
        with pytest.raises(KeyboardInterrupt):
            database_store.commit(holding(run))
    assert (database_store.failure(run.id), begun(database_store)) == (None, [0, 1])
    database_store.commit(holding(run))
    assert begun(database_store) == [0, 1, 2]
