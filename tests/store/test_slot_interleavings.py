"""Two transactions about the slots of a limit on two connections at READ COMMITTED, in every order, on real locks.

Each transaction is a statement and an end, as in `test_interleavings`. Afterwards comes one sweep. No order may hold
more slots than allowed, leave one free while a run waits for it, lose a wake-up, or deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.db import transaction

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.limits.slot_records import SlotChange, SlotKind, SlotWant
from durable.core.records import ENDED, Hold, HoldKind, OutgoingMessage, RunChange, RunRecord, RunState
from durable.core.summary import Summary, SummaryKind
from durable.store import transactions
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, ORDERS, Pools, both
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import LEASE, NOW, commit, park, started, the
from tests.support.locks import until_sessions_wait_for_locks
from tests.support.transitions import CALLS

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

X, Y = SlotWant("x", "", SlotKind.STEP, 1), SlotWant("y", "", SlotKind.STEP, 1)
TABLES = (
    "durable_slot",
    "durable_slotnote",
    "durable_limitkey",
    "durable_limit",
    "durable_hold",
    "durable_queuemessage",
    "durable_run",
)


def acquire(store: PostgresStore, run: RunRecord, *wants: SlotWant) -> Callable[[], Any]:
    return lambda: store.acquire(run.id, run.fence, "s", wants or [X], NOW)


def give_up(store: PostgresStore, run: RunRecord) -> Callable[[], Any]:
    return lambda: commit(store, run, slots=SlotChange(released=["s"]))


def end(store: PostgresStore, run: RunRecord) -> Callable[[], Any]:
    patch = transitions.completed(run, now=NOW, output="1")
    return lambda: commit(store, run, run=patch, slots=SlotChange())


def cancel(store: PostgresStore, run_id: str) -> Callable[[], Any]:
    return lambda: store.change(run_id, lambda run, _entries: RunChange(run=CALLS["cancelled_at_once"](run)))


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


@pytest.mark.parametrize("order", ORDERS)
def test_two_runs_take_the_last_slot(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        both(pools, order, ends, acquire(store, one), acquire(store, two))
        assert len(check(store, "a", "b")) == (ends != ("ROLLBACK", "ROLLBACK"))


@pytest.mark.parametrize("how", [give_up, end])
@pytest.mark.parametrize("order", ORDERS)
def test_a_slot_is_given_up_while_another_run_asks_for_it(
    postgres_store: PostgresStore, pools: Pools, order: str, how: Callable[..., Callable[[], Any]]
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        acquire(store, one)()
        both(pools, order, ends, how(store, one), acquire(store, two))
        if the(store, "b").state == RunState.RUNNING:
            park(store, two, batch={"slots": SlotChange(awaited=["s"] if ends[1] == "COMMIT" else [])})
        expected = {
            ("COMMIT", "COMMIT"): ["b"],
            ("COMMIT", "ROLLBACK"): [],
            ("ROLLBACK", "COMMIT"): ["a"],
            ("ROLLBACK", "ROLLBACK"): ["a"],
        }
        assert check(store, "a", "b") == expected[ends]


@pytest.mark.parametrize("order", ORDERS)
def test_a_slot_is_given_up_while_the_first_in_line_parks(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        acquire(store, one)()
        acquire(store, two)()
        parks = partial(park, store, two, batch={"slots": SlotChange(awaited=["s"])})
        both(pools, order, ends, give_up(store, one), parks)
        if ends[1] == "ROLLBACK":
            parks()
        assert check(store, "a", "b") == (["b"] if ends[0] == "COMMIT" else ["a"])


@pytest.mark.parametrize("order", ORDERS)
def test_a_slot_is_given_up_while_the_first_in_line_is_cancelled(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        acquire(store, one)()
        waiting(store, "b")
        waiting(store, "c")
        both(pools, order, ends, give_up(store, one), cancel(store, "b"))
        found = check(store, "a", "b", "c")
        if ends[0] == "ROLLBACK":
            assert found == ["a"]
        else:
            # a place that is being given up is passed by, whatever becomes of that in the end
            assert found == ["c"] or (found == ["b"] and ends[1] == "ROLLBACK")


@pytest.mark.parametrize("order", ORDERS)
def test_a_slot_is_given_up_while_the_first_in_line_is_paused(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    summary = Summary(SummaryKind.PAUSED)
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        acquire(store, one)()
        waiting(store, "b")
        waiting(store, "c")

        def pause() -> None:
            store.change("b", lambda run, _entries: RunChange(run=transitions.paused_at_once(run, summary=summary)))

        both(pools, order, ends, give_up(store, one), pause)
        found = check(store, "a", "b", "c")
        assert len(found) == 1
        assert (found == ["a"]) == (ends[0] == "ROLLBACK")


@pytest.mark.parametrize("order", ORDERS)
def test_two_slots_are_given_up_while_two_runs_wait(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        acquire(store, one, X)()
        acquire(store, two, Y)()
        waiting(store, "c", X, Y)
        both(pools, order, ends, give_up(store, one), give_up(store, two))
        store.sweep_slots(NOW, 100)
        held = [each for each in store.slots(["c"]) if each.is_held]
        assert len(held) == (2 if ends == ("COMMIT", "COMMIT") else 0)
        check(store, "a", "b", "c")


@pytest.mark.parametrize("order", ORDERS)
def test_two_runs_take_two_limits_in_opposite_orders(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        both(pools, order, ends, acquire(store, one, X, Y), acquire(store, two, X, Y))
        check(store, "a", "b")


@pytest.mark.parametrize("order", ORDERS)
def test_a_slot_is_handed_on_while_somebody_has_the_row_of_the_next_run(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        acquire(store, one)()
        waiting(store, "b")
        message = OutgoingMessage(id="m", to="b", queue="q", body="1", sent_at=NOW)
        both(pools, order, ends, end(store, one), partial(store.send, [message]))
        assert check(store, "a", "b") == (["b"] if ends[0] == "COMMIT" else ["a"])


def test_a_run_that_parks_while_it_is_given_the_slot_is_told_by_the_commit_that_gives_it(
    postgres_store: PostgresStore, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit cannot write the run's row, and leaves a note; no ticker is needed where the other one then ends."""
    store, patient = postgres_store, transactions.set_patience
    monkeypatch.setattr(transactions, "set_patience", lambda alias: patient(alias, 60.0))
    one, two = started(store, "a"), started(store, "b")
    assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted
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


@pytest.mark.parametrize("order", ORDERS)
def test_two_runs_that_wait_for_each_others_slots_end(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    """Each run holds what the other one waits for, in another operation of its own."""
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        acquire(store, one, X)()
        acquire(store, two, Y)()
        store.acquire(one.id, one.fence, "t", [Y], NOW)
        store.acquire(two.id, two.fence, "t", [X], NOW)
        both(pools, order, ends, end(store, one), end(store, two))
        check(store, "a", "b")


def test_a_worker_that_comes_late_takes_nothing(postgres_store: PostgresStore) -> None:
    empty(POSTGRES, *TABLES)
    one = started(postgres_store, "a")
    newer = postgres_store.claim_run("a", now=NOW + 2 * LEASE, lease_until=NOW + 3 * LEASE, worker="w2")
    assert newer is not None
    with pytest.raises(LeaseLost):
        acquire(postgres_store, one)()
    assert postgres_store.slots(["a"]) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_is_refused_while_the_limit_is_raised(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one, two = started(store, "a"), started(store, "b")
        assert store.acquire(two.id, two.fence, "s", [X], NOW).is_granted
        store.set_limit("x", 0)
        commit(store, two, slots=SlotChange(released=["s"]))
        both(pools, order, ends, acquire(store, one), lambda: store.set_limit("x", 1))
        if ends[1] == "COMMIT":
            check(store, "a", "b")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", [give_up, end])
def test_the_queue_of_the_next_run_is_paused_while_it_gets_the_slot(
    postgres_store: PostgresStore, pools: Pools, order: str, how: Callable[..., Callable[[], Any]]
) -> None:
    """The slot goes to the run behind it, of another queue, whichever comes first; and to it when it is resumed."""
    store = postgres_store
    hold = Hold(kind=HoldKind.QUEUE, name="other", held_at=NOW)
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted
        waiting(store, "b", queue="other")
        waiting(store, "c")
        both(pools, order, ends, how(store, one), lambda: store.hold(hold))
        expected = {"ROLLBACK": "a"}.get(ends[0]) or {"ROLLBACK": "b"}.get(ends[1], "c")
        assert check(store, "a", "b", "c") == [expected]
        if ends == ("COMMIT", "COMMIT"):
            store.lift(HoldKind.QUEUE, "other")
            held = store.claim_run("c", now=NOW, lease_until=NOW + LEASE, worker="w")
            assert held is not None
            give_up(store, held)()
            assert check(store, "b", "c") == ["b"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_queue_is_resumed_while_a_slot_is_given_up_that_its_run_waits_for(
    postgres_store: PostgresStore, pools: Pools, order: str
) -> None:
    store = postgres_store
    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted
        waiting(store, "b", queue="other")
        store.hold(Hold(kind=HoldKind.QUEUE, name="other", held_at=NOW))
        both(pools, order, ends, give_up(store, one), lambda: store.lift(HoldKind.QUEUE, "other"))
        expected = ["a"] if ends[0] == "ROLLBACK" else ["b"] if ends[1] == "COMMIT" else []
        assert check(store, "a", "b") == expected


@pytest.mark.parametrize("how", [give_up, end])
def test_a_run_waits_and_gets_the_slot_while_its_queue_is_about_to_be_paused(
    postgres_store: PostgresStore, pools: Pools, how: Callable[..., Callable[[], Any]]
) -> None:
    """The transaction that pauses the queue sees neither its place nor the slot."""
    store = postgres_store
    one = started(store, "a")
    assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted

    def in_between() -> None:
        waiting(store, "b", queue="other")
        waiting(store, "c")
        how(store, one)()

    hold = Hold(kind=HoldKind.QUEUE, name="other", held_at=NOW)
    both(pools, "ABba", ("COMMIT", "COMMIT"), lambda: store.hold(hold), in_between)
    assert check(store, "a", "b", "c") == ["c"]


def test_a_run_waits_while_its_queue_is_about_to_be_resumed(postgres_store: PostgresStore, pools: Pools) -> None:
    """Who resumes the queue does not see its place, and who gives the slot up does not see the queue resumed."""
    store = postgres_store
    one = started(store, "a")
    two = started(store, "b", queue="other")
    assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted
    store.hold(Hold(kind=HoldKind.QUEUE, name="other", held_at=NOW))

    def in_between() -> None:
        assert not store.acquire(two.id, two.fence, "s", [X], NOW).is_granted
        park(store, two, batch={"slots": SlotChange(awaited=["s"])})
        give_up(store, one)()

    both(pools, "ABba", ("COMMIT", "COMMIT"), lambda: store.lift(HoldKind.QUEUE, "other"), in_between)
    assert check(store, "a", "b") == ["b"]


@pytest.mark.parametrize("order", ORDERS)
def test_the_next_run_is_paused_while_it_gets_the_slot(postgres_store: PostgresStore, pools: Pools, order: str) -> None:
    store = postgres_store
    paused = Summary(SummaryKind.PAUSED)

    def pause() -> Any:
        return store.change("b", lambda run, _entries: RunChange(run=transitions.paused_at_once(run, summary=paused)))

    for ends in product(ENDS, ENDS):
        empty(POSTGRES, *TABLES)
        one = started(store, "a")
        assert store.acquire(one.id, one.fence, "s", [X], NOW).is_granted
        waiting(store, "b")
        waiting(store, "c")
        both(pools, order, ends, give_up(store, one), pause)
        if ends == ("COMMIT", "COMMIT"):
            assert check(store, "a", "b", "c") == ["c"]
