"""Two transactions about the slots of a limit on two connections at READ COMMITTED, in every order, on real locks.

Afterwards comes one sweep. No order may hold
more slots than allowed, leave one free while a run waits for it, lose a wake-up, or deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from durable.core import transitions
from durable.core.limits.slot_records import SlotChange, SlotKind, SlotWant
from durable.core.records import ENDED, Hold, HoldKind, OutgoingMessage, RunRecord, RunState
from durable.store import transactions
from durable.store.postgres import PostgresStore
from tests.store.actors import Pools, Race
from tests.store.conftest import POSTGRES
from tests.store.making import NOW, cancel, changed, claimed, commit, park, started, the
from tests.support.locks import until_sessions_wait_for_locks

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

X, Y = SlotWant("x", "", SlotKind.STEP, 1), SlotWant("y", "", SlotKind.STEP, 1)
PAUSED = Hold(kind=HoldKind.QUEUE, name="other", held_at=NOW)


def acquire(store: PostgresStore, run: RunRecord, *wants: SlotWant) -> Callable[[], Any]:
    return lambda: store.acquire(run.id, run.fence, "s", wants or [X], NOW)


def give_up(store: PostgresStore, run: RunRecord) -> Callable[[], Any]:
    return lambda: commit(store, run, slots=SlotChange(released=["s"]))


def end(store: PostgresStore, run: RunRecord) -> Callable[[], Any]:
    patch = transitions.completed(run, now=NOW, output="1")
    return lambda: commit(store, run, run=patch, slots=SlotChange())


def holder(store: PostgresStore) -> RunRecord:
    """A run that holds the slot of X."""
    run = started(store, "a")
    assert store.acquire(run.id, run.fence, "s", [X], NOW).is_granted
    return run


def waiting(store: PostgresStore, run_id: str, *wants: SlotWant, queue: str = "q") -> RunRecord:
    """A run that is parked in a line."""
    run = started(store, run_id, queue=queue)
    assert not store.acquire(run.id, run.fence, "s", wants or [X], NOW).is_granted
    park(store, run, batch={"slots": SlotChange(awaited=["s"])})
    return the(store, run_id)


def is_passed_by(store: PostgresStore, run: RunRecord) -> bool:
    return run.state == RunState.PAUSED or store.held(HoldKind.QUEUE, run.queue) is not None


def check(store: PostgresStore, *ids: str) -> list[str]:
    """What must hold after one sweep; the runs that hold slots of X."""
    store.sweep_slots(NOW, 100)
    store.sweep_slots(NOW, 100)  # of a run that somebody had locked
    rows = store.slots(ids)
    for want in (X, Y):
        held = [each.run_id for each in rows if each.limit == want.limit and each.is_held]
        line = [each.run_id for each in rows if each.limit == want.limit and not each.is_held]
        assert len(held) <= 1, "more are held than allowed"
        assert held or all(is_passed_by(store, the(store, each)) for each in line), "one is free, and a run waits"
    for row in rows:
        run = the(store, row.run_id)
        assert run.state not in ENDED, "a slot outlives its run"
        if row.is_held and run.state == RunState.SLEEPING:
            assert run.wake_at is not None, "nobody has woken the run that holds the slot"
    return [each.run_id for each in rows if each.is_held and each.limit == "x"]


def test_two_runs_take_the_last_slot(race: Race) -> None:
    store = race.store
    one, two = started(store, "a"), started(store, "b")
    race.run(acquire(store, one), acquire(store, two))
    assert len(check(store, "a", "b")) == any(race.commits)


def test_a_run_takes_a_slot_or_a_place_while_unused_keys_are_forgotten(race: Race) -> None:
    store = race.store
    one, two = holder(store), started(store, "b")
    give_up(store, one)()
    race.run(acquire(store, two), lambda: store.forget_limit_keys(NOW, 10))
    three = started(store, "c")
    assert acquire(store, three)().is_granted != race.a_commits
    if race.a_commits:
        park(store, three, batch={"slots": SlotChange(awaited=["s"])})
        give_up(store, two)()
    assert check(store, "a", "b", "c") == ["c"]


def test_a_run_waits_for_two_limits_while_unused_keys_are_forgotten(race: Race) -> None:
    store = race.store
    one, two, three = holder(store), started(store, "b"), started(store, "c")
    assert store.acquire(three.id, three.fence, "s", [Y], NOW).is_granted
    give_up(store, three)()
    waits = partial(store.acquire, two.id, two.fence, "", [X, Y], NOW)
    race.run(waits, lambda: store.forget_limit_keys(NOW, 10))
    if not race.a_commits:
        waits()
    park(store, two, batch={"slots": SlotChange(awaited=[""])})
    give_up(store, one)()
    assert check(store, "a", "b", "c") == ["b"]


@pytest.mark.parametrize("how", [give_up, end])
def test_a_slot_is_given_up_while_another_run_asks_for_it(race: Race, how: Callable[..., Callable[[], Any]]) -> None:
    store = race.store
    one, two = holder(store), started(store, "b")
    race.run(how(store, one), acquire(store, two))
    if the(store, "b").state == RunState.RUNNING:
        park(store, two, batch={"slots": SlotChange(awaited=["s"] if race.b_commits else [])})
    assert check(store, "a", "b") == (["a"] if not race.a_commits else ["b"] if race.b_commits else [])


def test_a_slot_is_given_up_while_the_first_in_line_parks(race: Race) -> None:
    store = race.store
    one, two = holder(store), started(store, "b")
    acquire(store, two)()
    parks = partial(park, store, two, batch={"slots": SlotChange(awaited=["s"])})
    race.run(give_up(store, one), parks)
    if not race.b_commits:
        parks()
    assert check(store, "a", "b") == (["b"] if race.a_commits else ["a"])


def test_a_slot_is_given_up_while_the_first_in_line_is_cancelled(race: Race) -> None:
    store = race.store
    one = holder(store)
    waiting(store, "b")
    waiting(store, "c")
    race.run(give_up(store, one), lambda: cancel(store, "b"))
    found = check(store, "a", "b", "c")
    if not race.a_commits:
        assert found == ["a"]
    else:
        # a place that is being given up is passed by, whatever becomes of that in the end
        assert found == ["c"] or (found == ["b"] and not race.b_commits)


def test_a_slot_is_given_up_while_the_first_in_line_is_paused(race: Race) -> None:
    store = race.store
    one = holder(store)
    waiting(store, "b")
    waiting(store, "c")
    race.run(give_up(store, one), lambda: changed(store, "b", transitions.paused_at_once, summary="paused"))
    found = check(store, "a", "b", "c")
    assert len(found) == 1
    assert (found == ["a"]) == (not race.a_commits)
    if race.both_commit:
        assert found == ["c"]


def test_two_slots_are_given_up_while_two_runs_wait(race: Race) -> None:
    store = race.store
    one, two = started(store, "a"), started(store, "b")
    acquire(store, one, X)()
    acquire(store, two, Y)()
    waiting(store, "c", X, Y)
    race.run(give_up(store, one), give_up(store, two))
    store.sweep_slots(NOW, 100)
    held = [each for each in store.slots(["c"]) if each.is_held]
    assert len(held) == (2 if race.both_commit else 0)
    check(store, "a", "b", "c")


def test_two_runs_take_two_limits_in_opposite_orders(race: Race) -> None:
    store = race.store
    one, two = started(store, "a"), started(store, "b")
    race.run(acquire(store, one, X, Y), acquire(store, two, X, Y))
    check(store, "a", "b")


def test_a_slot_is_handed_on_while_somebody_has_the_row_of_the_next_run(race: Race) -> None:
    store = race.store
    one = holder(store)
    waiting(store, "b")
    message = OutgoingMessage(id="m", to="b", queue="q", body="1", sent_at=NOW)
    race.run(end(store, one), partial(store.send, [message]))
    assert check(store, "a", "b") == (["b"] if race.a_commits else ["a"])


def test_a_run_that_parks_while_it_is_given_the_slot_is_told_by_the_commit_that_gives_it(
    postgres_store: PostgresStore, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit cannot write the run's row, and leaves a note; no ticker is needed where the other one then ends."""
    store, patient = postgres_store, transactions.set_patience
    monkeypatch.setattr(transactions, "set_patience", lambda alias: patient(alias, 60.0))
    one, two = holder(store), started(store, "b")
    assert not store.acquire(two.id, two.fence, "s", [X], NOW).is_granted
    has_parked = threading.Event()

    def parks() -> None:
        with transaction.atomic(using=POSTGRES):
            park(store, two, batch={"slots": SlotChange(awaited=["s"])})
            has_parked.set()
            until_sessions_wait_for_locks(POSTGRES)

    other = pools[0].submit(parks)
    assert has_parked.wait(120)
    answer = commit(store, one, slots=SlotChange(released=["s"]))
    other.result(120)
    assert answer.queues_to_notify == {"q"}
    assert the(store, "b").wake_at == NOW
    assert [each.run_id for each in store.slots(["a", "b"]) if each.is_held] == ["b"]


def test_two_runs_that_wait_for_each_others_slots_end(race: Race) -> None:
    """Each run holds what the other one waits for, in another operation of its own."""
    store = race.store
    one, two = started(store, "a"), started(store, "b")
    acquire(store, one, X)()
    acquire(store, two, Y)()
    store.acquire(one.id, one.fence, "t", [Y], NOW)
    store.acquire(two.id, two.fence, "t", [X], NOW)
    race.run(end(store, one), end(store, two))
    check(store, "a", "b")


def test_a_run_is_refused_while_the_limit_is_raised(race: Race) -> None:
    store = race.store
    one, two = started(store, "a"), started(store, "b")
    assert store.acquire(two.id, two.fence, "s", [X], NOW).is_granted
    store.set_limit("x", 0)
    commit(store, two, slots=SlotChange(released=["s"]))
    race.run(acquire(store, one), lambda: store.set_limit("x", 1))
    if race.b_commits:
        check(store, "a", "b")


@pytest.mark.parametrize("how", [give_up, end])
def test_the_queue_of_the_next_run_is_paused_while_it_gets_the_slot(
    race: Race, how: Callable[..., Callable[[], Any]]
) -> None:
    """The slot goes to the run behind it, of another queue, whichever comes first; and to it when it is resumed."""
    store = race.store
    one = holder(store)
    waiting(store, "b", queue="other")
    waiting(store, "c")
    race.run(how(store, one), lambda: store.hold(PAUSED))
    assert check(store, "a", "b", "c") == ["a" if not race.a_commits else "c" if race.b_commits else "b"]
    if race.both_commit:
        store.lift(HoldKind.QUEUE, "other")
        give_up(store, claimed(store, "c"))()
        assert check(store, "b", "c") == ["b"]


def test_a_queue_is_resumed_while_a_slot_is_given_up_that_its_run_waits_for(race: Race) -> None:
    store = race.store
    one = holder(store)
    waiting(store, "b", queue="other")
    store.hold(PAUSED)
    race.run(give_up(store, one), lambda: store.lift(HoldKind.QUEUE, "other"))
    expected = ["a"] if not race.a_commits else ["b"] if race.b_commits else []
    assert check(store, "a", "b") == expected


@pytest.mark.parametrize("how", [give_up, end])
def test_a_run_waits_and_gets_the_slot_while_its_queue_is_about_to_be_paused(
    postgres_store: PostgresStore, pools: Pools, how: Callable[..., Callable[[], Any]]
) -> None:
    """The transaction that pauses the queue sees neither its place nor the slot."""
    store = postgres_store
    one = holder(store)

    def in_between() -> None:
        waiting(store, "b", queue="other")
        waiting(store, "c")
        how(store, one)()

    Race(store, pools).run(lambda: store.hold(PAUSED), in_between)
    assert check(store, "a", "b", "c") == ["c"]


def test_a_run_waits_while_its_queue_is_about_to_be_resumed(postgres_store: PostgresStore, pools: Pools) -> None:
    """Who resumes the queue does not see its place, and who gives the slot up does not see the queue resumed."""
    store = postgres_store
    one, two = holder(store), started(store, "b", queue="other")
    store.hold(PAUSED)

    def in_between() -> None:
        assert not store.acquire(two.id, two.fence, "s", [X], NOW).is_granted
        park(store, two, batch={"slots": SlotChange(awaited=["s"])})
        give_up(store, one)()

    Race(store, pools).run(lambda: store.lift(HoldKind.QUEUE, "other"), in_between)
    assert check(store, "a", "b") == ["b"]
