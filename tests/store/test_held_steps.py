"""Steps that wait for a person, as each store keeps them: with which commit they come, and with what they go."""

from __future__ import annotations

from typing import Any

import pytest

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo
from durable.core.records import Cause, EntryStatus, HeldOver, RunChange, RunState
from durable.store import Store
from tests.store.family import a_child, start_children
from tests.store.making import NOW, a_batch, a_failure, an_attempt, an_entry, commit, finished, park, started, the

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
    store.change("run", lambda row, _entries: RunChange(run=transitions.settled(row, now=NOW)))
    assert is_listed(store), "another step is held"
    store.change("run", lambda row, _entries: RunChange(run=transitions.settled(row, now=NOW), is_held_over=True))
    assert not is_listed(store)


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED])
def test_the_end_of_a_pass_ends_it(store: Store, state: RunState) -> None:
    finished(store, held_run(store), state)
    assert not is_listed(store)


def test_a_cancel_of_a_waiting_run_ends_it(store: Store) -> None:
    park(store, held_run(store))
    store.change(
        "run", lambda row, _: RunChange(run=transitions.cancelled_at_once(row, now=NOW, reason="", summary=""))
    )
    assert not is_listed(store)


def test_the_end_of_a_parent_ends_it(store: Store) -> None:
    parent = started(store, "parent")
    start_children(store, parent, a_child("child"))
    child = store.claim_run("child", now=NOW, lease_until=NOW, worker="worker")
    assert child is not None
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
