"""Steps that wait for a person, as each store keeps them: with which commit they come, and with what they go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo
from durable.core.records import (
    ENDED,
    Cause,
    Committed,
    EntryStatus,
    GroupRecord,
    HeldOver,
    OnFailure,
    RunChange,
    RunRecord,
    RunState,
    WhenHeld,
)
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.rules import child_rules
from tests.store.children import GROUP, a_child, end, grouped, holding, start_children
from tests.store.conftest import POSTGRES
from tests.store.making import (
    LEASE,
    NOW,
    a_batch,
    a_failure,
    an_attempt,
    an_entry,
    at,
    cancel,
    changed,
    claimed,
    commit,
    finished,
    park,
    started,
    the,
)

AWAY = Cause(place="charge", error_type="BankError", pattern="away")


def held_run(store: Store, run_id: str = "run", **values: Any) -> Any:
    """A run in the hands of a worker, whose step "charge" is held by a commit of its own."""
    run = started(store, run_id, **values)
    entry = an_entry(
        "charge",
        status=EntryStatus.HELD,
        attempts=2,
        error=ErrorInfo("BankError", "away"),
        data={"held": {"reason": "exhausted", "since": NOW.isoformat(), "failure": {"kind": "exhausted"}}},
    )
    failure = a_failure(run_id, AWAY, is_held=True)
    store.commit(a_batch(run, entries=[entry], attempts=[an_attempt("charge", 2)], failure=failure))
    return run


def is_listed(store: Store, run_id: str = "run") -> bool:
    failure = store.failure(run_id)
    assert failure is not None
    assert failure.is_open == failure.is_held
    return failure.is_held


def test_it_is_listed_with_the_commit_that_holds_it(store: Store) -> None:
    held_run(store)
    assert is_listed(store)
    failure = store.failure("run")
    assert failure is not None
    assert failure.cause == AWAY
    [entry] = store.held_steps("run")
    assert (entry.location, entry.status, entry.attempts, entry.data["held"]["reason"]) == (
        "charge",
        "held",
        2,
        "exhausted",
    )
    assert [each.number for each in store.attempts("run")] == [2]


def test_others_are_not_among_them(store: Store) -> None:
    run = started(store)
    commit(store, run, entries=[an_entry("a", status=EntryStatus.UNKNOWN), an_entry("b", status=EntryStatus.FAILED)])
    assert store.held_steps("run") == []
    assert store.held_steps("nobody") == []
    assert store.failure("run") is None


def test_a_commit_says_that_none_is_left(store: Store) -> None:
    run = held_run(store)
    store.commit(a_batch(run, entries=[an_entry("b")]))
    assert is_listed(store)
    batch = a_batch(run, deleted=["charge"])
    batch.changes = {HeldOver: [HeldOver()]}
    store.commit(batch)
    assert not is_listed(store)
    assert store.held_steps("run") == []


def test_a_verb_says_that_none_is_left(store: Store) -> None:
    run = held_run(store)
    park(store, run)
    changed(store, "run", transitions.settled, now=NOW)
    assert is_listed(store), "another step is held"
    store.change("run", lambda row, _entries: RunChange(run=transitions.settled(row, now=NOW), is_held_over=True))
    assert not is_listed(store)


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED])
def test_the_end_of_a_pass_ends_it(store: Store, state: RunState) -> None:
    finished(store, held_run(store), state)
    assert not is_listed(store)


def test_a_cancel_of_a_waiting_run_ends_it(store: Store) -> None:
    park(store, held_run(store))
    cancel(store, "run")
    assert not is_listed(store)


def test_the_end_of_a_parent_ends_it(store: Store) -> None:
    parent = started(store, "parent")
    start_children(store, parent, a_child("child"))
    child = claimed(store, "child")
    entry = an_entry("charge", status=EntryStatus.HELD, data={"held": {"reason": "exhausted"}})
    store.commit(a_batch(child, entries=[entry], failure=a_failure("child", AWAY, is_held=True)))
    park(store, child)
    assert is_listed(store, "child")
    finished(store, parent)
    assert the(store, "child").state == "cancelled"
    assert not is_listed(store, "child")


def test_a_run_that_fails_is_failed_and_not_held(store: Store) -> None:
    run = held_run(store)
    patch: Any = {"state": RunState.FAILED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}
    other = Cause(place="ship", error_type="ValueError", pattern="no")
    store.commit(a_batch(run, run=patch, failure=a_failure("run", other)))
    failure = store.failure("run")
    assert failure is not None
    assert (failure.is_open, failure.is_held, failure.cause) == (True, False, other)


def test_a_second_step_that_is_held_is_the_newest_cause(store: Store) -> None:
    run = held_run(store)
    other = Cause(place="ship", error_type="ValueError", pattern="no")
    entry = an_entry("ship", status=EntryStatus.HELD, data={"held": {"reason": "exhausted"}})
    store.commit(a_batch(run, entries=[entry], failure=a_failure("run", other, is_held=True)))
    assert [each.location for each in store.held_steps("run")] == ["charge", "ship"]
    failure = store.failure("run")
    assert failure is not None
    assert failure.cause == other


def test_a_worker_that_lost_its_lease_holds_nothing(store: Store) -> None:
    run = started(store)
    store.change("run", lambda row, _: RunChange(run={"fence": row.fence + 1}))
    with pytest.raises(LeaseLost):
        store.commit(
            a_batch(
                run, entries=[an_entry("charge", status=EntryStatus.HELD)], failure=a_failure("run", AWAY, is_held=True)
            )
        )
    assert store.failure("run") is None
    assert store.held_steps("run") == []


# -- the place of a child of a map whose step is held: kept, or free for the next child


FREE = {"when_held": WhenHeld.FREE}


def child(number: int) -> str:
    return f"{GROUP}:{number}"


def claim(store: Store, number: int) -> RunRecord:
    return claimed(store, child(number))


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
        patched.setattr(child_rules, "freed", die)
        with pytest.raises(KeyboardInterrupt):
            database_store.commit(holding(run))
    assert (database_store.failure(run.id), begun(database_store)) == (None, [0, 1])
    database_store.commit(holding(run))
    assert begun(database_store) == [0, 1, 2]
