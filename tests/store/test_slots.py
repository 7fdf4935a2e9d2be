"""Slots of limits, on every store: who takes one, who waits in line, who is next; and commits that give them up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.errors import UnknownLimitError
from durable.core.limits.slot_records import Admission, SlotChange, SlotKind, SlotWant
from durable.core.records import Hold, HoldKind, RunChange, RunRecord, RunState
from durable.models import LimitKey, Run
from durable.store import Store, sessions
from durable.store.database import DatabaseStore
from durable.store.postgres import PostgresStore, sql_functions
from tests.store.children import a_child
from tests.store.conftest import POSTGRES
from tests.store.making import (
    LEASE,
    NOW,
    a_failure,
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
from tests.support.transitions import CALLS

GPU = SlotWant("gpu", "", SlotKind.STEP, 2)
X, Y = SlotWant("x", "", SlotKind.STEP, 1), SlotWant("y", "", SlotKind.STEP, 1)


def take(store: Store, run: RunRecord, *wants: SlotWant, location: str = "a") -> Admission:
    return store.acquire(run.id, run.fence, location, wants or [GPU], NOW)


def wait(store: Store, run: RunRecord, *wants: SlotWant, location: str = "a") -> Admission:
    """Take a place in a line, and park for it."""
    answer = take(store, run, *wants, location=location)
    assert not answer.is_granted
    park(store, run, batch={"slots": SlotChange(awaited=[location])})
    return answer


def give_up(store: Store, run: RunRecord, *locations: str) -> frozenset[str]:
    return commit(store, run, slots=SlotChange(released=locations or ["a"])).queues_to_notify


def holders(store: Store, *ids: str) -> list[str]:
    return sorted(each.run_id for each in store.slots(ids) if each.is_held)


def runs(store: Store, ids: str, queue: str = "q") -> list[RunRecord]:
    return [started(store, each, queue=queue) for each in ids]


def test_as_many_are_held_as_the_limit_allows(store: Store) -> None:
    one, two, three = runs(store, "abc")
    assert take(store, one).is_granted
    assert take(store, two).is_granted
    answer = take(store, three)
    assert answer == Admission(is_granted=False, limit="gpu", place=1, held=2, at_once=2)
    assert holders(store, "a", "b", "c") == ["a", "b"]


def test_what_is_held_is_found_again(store: Store) -> None:
    one, two, three = runs(store, "abc")
    for _ in range(3):
        assert take(store, one).is_granted
    assert take(store, two).is_granted
    for _ in range(3):
        assert take(store, three).place == 1
    assert len(store.slots(["a", "b", "c"])) == 3


def test_a_run_may_hold_several_slots_for_operations_of_its_own(store: Store) -> None:
    [one] = runs(store, "a")
    assert take(store, one, location="x").is_granted
    assert take(store, one, location="y").is_granted
    assert not take(store, one, location="z").is_granted


def test_keys_are_independent(store: Store) -> None:
    one, two = runs(store, "ab")
    assert take(store, one, SlotWant("crm", "acme", SlotKind.STEP, 1)).is_granted
    assert take(store, two, SlotWant("crm", "emca", SlotKind.STEP, 1)).is_granted
    answer = take(store, two, SlotWant("crm", "acme/🎉 x", SlotKind.STEP, 1), location="b")
    assert answer.is_granted
    refused = take(store, one, SlotWant("crm", "acme/🎉 x", SlotKind.STEP, 1), location="c")
    assert (refused.limit, refused.key) == ("crm", "acme/🎉 x")


def test_a_slot_that_is_given_up_goes_to_the_first_in_line(store: Store) -> None:
    one, two, *others = runs(store, "abcde")
    take(store, one)
    take(store, two)
    for place, run in enumerate(others, 1):
        assert wait(store, run).place == place
        assert the(store, run.id).wake_at is None
    assert give_up(store, one) == {"q"}
    assert holders(store, *"abcde") == ["b", "c"]
    assert the(store, "c").wake_at == NOW
    assert the(store, "d").wake_at is None
    assert take(store, claimed(store, "c")).is_granted
    assert take(store, one).place == 3, "behind those who wait"


def test_the_end_of_a_run_gives_up_its_slots(store: Store) -> None:
    one, two = runs(store, "ab")
    want = SlotWant("crm", "acme", SlotKind.OPEN, 1)
    take(store, one, want, location="")
    wait(store, two, want, location="")
    patch = transitions.completed(one, now=NOW, output="1")
    answer = commit(store, one, run=patch, slots=SlotChange())
    assert answer.queues_to_notify == {"q"}
    assert holders(store, "a", "b") == ["b"]
    assert the(store, "b").wake_at == NOW


@pytest.mark.parametrize("state", [RunState.SLEEPING, RunState.PENDING])
def test_an_end_outside_a_pass_is_handed_on_by_the_sweep(store: Store, state: RunState) -> None:
    one, two = runs(store, "ab")
    want = SlotWant("crm", "acme", SlotKind.OPEN, 1)
    take(store, one, want, location="")
    wait(store, two, want, location="")
    park(store, one, state=state)
    cancel(store, "a")
    assert holders(store, "a") == []
    queues, number = store.sweep_slots(at(1), 10)
    assert (queues, number) == (frozenset({"q"}), 1)
    assert holders(store, "a", "b") == ["b"]
    assert the(store, "b").wake_at == at(1)
    assert store.sweep_slots(at(2), 10) == (frozenset(), 0)


def test_a_run_that_parks_gives_up_what_it_holds_while_it_runs(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, SlotWant("x", "", SlotKind.RUNNING, 1), SlotWant("y", "", SlotKind.OPEN, 1), location="")
    wait(store, two, SlotWant("x", "", SlotKind.RUNNING, 1), location="")
    park(store, one, batch={"slots": SlotChange(is_left=True)})
    assert [(each.run_id, each.limit) for each in store.slots(["a", "b"])] == [("a", "y"), ("b", "x")]
    assert holders(store, "a", "b") == ["a", "b"]


def test_a_run_that_parks_gives_up_what_it_holds_for_steps_that_it_does_not_wait_for(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X, location="lost")
    take(store, one, Y, location="awaited")
    wait(store, two, X)
    park(store, one, batch={"slots": SlotChange(is_left=True, awaited=["awaited"])})
    assert [(each.run_id, each.limit) for each in store.slots(["a", "b"])] == [("a", "y"), ("b", "x")]
    assert holders(store, "a", "b") == ["a", "b"]


def test_a_run_that_sleeps_with_a_slot_that_is_for_its_passes_gives_it_up_and_goes_on(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X, location="forgotten")
    wait(store, one, X, location="next")  # for what it holds itself
    wait(store, two, X)
    take(store, three, SlotWant("y", "", SlotKind.OPEN, 1), location="")
    park(store, three)
    assert store.give_up_idle_slots(at(59), 10) == []
    [woken] = store.give_up_idle_slots(at(61), 10)
    assert (woken.id, woken.queue, woken.wake_at) == ("a", "q", at(61))
    assert the(store, "a").wake_at == at(61)
    store.sweep_slots(at(61), 10)
    assert [(each.run_id, each.location) for each in store.slots(["a", "b", "c"]) if each.is_held] == [
        ("a", "next"),
        ("c", ""),
    ]
    assert store.give_up_idle_slots(at(130), 10) == [], "it is due"


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_keeps_one_of_two_slots_waits_for_the_other_one_alone(store: Store, at_once: int) -> None:
    one, two = runs(store, "ab")
    kept, passed = SlotWant("x", "", SlotKind.OPEN, at_once), SlotWant("y", "", SlotKind.RUNNING, 1)
    assert take(store, one, kept, passed, location="").is_granted
    park(store, one, batch={"slots": SlotChange(is_left=True)}, wake_at=NOW)
    assert take(store, two, Y).is_granted
    one = claimed(store, "a")
    assert wait(store, one, kept, passed, location="").limit == "y"
    give_up(store, two)
    assert [(each.run_id, each.limit, each.is_held) for each in store.slots(["a", "b"])] == [
        ("a", "x", True),
        ("a", "y", True),
    ]
    assert the(store, "a").wake_at == NOW


def test_keys_that_no_run_holds_or_awaits_are_forgotten(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X)
    wait(store, two, X)
    take(store, one, Y, location="b")
    store.forget_limit_keys(at(0), 10)
    give_up(store, one, "b")
    store.forget_limit_keys(at(0), 10)
    cancel(store, "a")
    store.sweep_slots(at(0), 10)
    assert holders(store, "a", "b") == ["b"]
    finished(store, the(store, "b"))
    store.forget_limit_keys(at(0), 10)
    assert not isinstance(store, DatabaseStore) or not LimitKey.objects.using(store.alias).exists()
    [three] = runs(store, "c")
    assert take(store, three, X).is_granted


def test_a_line_whose_runs_want_a_key_that_nobody_holds_goes_on(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X)
    wait(store, two, X, Y, location="")
    wait(store, three, X)
    assert store.forget_limit_keys(at(0), 1) == 0, "a call that deletes fewer than it may is the last one"
    give_up(store, one)
    store.sweep_slots(at(0), 10)
    assert [(each.run_id, each.limit) for each in store.slots(["b", "c"]) if each.is_held] == [("b", "x"), ("b", "y")]


@pytest.mark.parametrize("kind", list(SlotKind))
def test_a_run_that_is_paused_before_it_uses_its_slot_gives_it_up(store: Store, kind: SlotKind) -> None:
    one, two, three = runs(store, "abc")
    want = SlotWant("x", "", kind, 1)
    take(store, one, want)
    wait(store, two, want)
    wait(store, three, want)
    give_up(store, one)
    changed(store, "b", transitions.paused_at_once, summary="paused")
    store.sweep_slots(NOW, 10)
    assert holders(store, *"abc") == ["b" if kind is SlotKind.OPEN else "c"]


def test_a_slot_that_came_before_the_park_makes_the_run_due(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X)
    assert not take(store, two, X).is_granted
    assert give_up(store, one) == frozenset(), "a worker has the run"
    answer = park(store, two, batch={"slots": SlotChange(awaited=["a"])})
    assert answer.queues_to_notify == {"q"}
    assert the(store, "b").wake_at == NOW


def test_a_run_whose_lease_ends_at_this_moment_is_free(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X)
    assert not take(store, two, X).is_granted
    given_up = commit(store, one, now=NOW + LEASE, slots=SlotChange(released=["a"]))
    assert given_up.queues_to_notify == {"q"}


def test_a_paused_run_keeps_its_place_and_is_passed_by(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X)
    wait(store, two, X)
    wait(store, three, X)
    changed(store, "b", transitions.paused_at_once, summary="paused")
    give_up(store, one)
    assert holders(store, *"abc") == ["c"]
    changed(store, "b", transitions.resumed, now=NOW, summary="resumed")
    wait(store, one, X)
    assert take(store, claimed(store, "b"), X).place == 1
    give_up(store, claimed(store, "c"))
    assert holders(store, *"abc") == ["b"]


def test_a_free_slot_for_which_only_a_paused_run_waits_goes_to_a_run_that_comes_later(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X)
    wait(store, two, X)
    changed(store, "b", transitions.paused_at_once, summary="paused")
    give_up(store, one)
    assert take(store, three, X).is_granted


def paused(store: Store, queue: str) -> None:
    assert store.hold(Hold(kind=HoldKind.QUEUE, name=queue, held_at=NOW))


def test_a_run_of_a_paused_queue_keeps_its_place_and_is_passed_by(store: Store) -> None:
    one, three = runs(store, "ac")
    [two] = runs(store, "b", queue="other")
    take(store, one, X)
    wait(store, two, X)
    wait(store, three, X)
    paused(store, "other")
    give_up(store, one)
    assert holders(store, *"abc") == ["c"]
    wait(store, one, X)
    assert store.lift(HoldKind.QUEUE, "other")
    give_up(store, claimed(store, "c"))
    assert holders(store, *"abc") == ["b"]
    assert the(store, "b").wake_at == NOW


@pytest.mark.parametrize("how", ["its queue is resumed", "it leaves the queue"])
def test_a_free_slot_goes_to_the_run_that_was_passed_by_in_a_paused_queue(store: Store, how: str) -> None:
    [one] = runs(store, "a")
    [two] = runs(store, "b", queue="other")
    take(store, one, X)
    wait(store, two, X)
    paused(store, "other")
    give_up(store, one)
    store.sweep_slots(NOW, 100)
    assert holders(store, *"ab") == []
    if how == "its queue is resumed":
        assert store.lift(HoldKind.QUEUE, "other")
    else:
        move(store, "b", "q")
    queues, _ = store.sweep_slots(NOW, 100)
    assert queues == {"other" if how == "its queue is resumed" else "q"}
    assert holders(store, *"ab") == ["b"]


def move(store: Store, run_id: str, queue: str) -> None:
    changed(store, run_id, transitions.requeued, queue=queue, now=NOW)


def test_a_slot_that_is_on_its_way_to_a_run_goes_to_others_when_the_run_comes_to_a_paused_queue(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X)
    wait(store, two, X)
    wait(store, three, X)
    paused(store, "other")
    give_up(store, one)
    assert holders(store, *"abc") == ["b"]
    move(store, "b", "other")
    for _ in range(3):
        store.sweep_slots(NOW, 100)
    assert holders(store, *"abc") == ["c"]


@pytest.mark.parametrize("limits", ["x", "xy"])
def test_a_slot_that_a_run_of_a_paused_queue_has_not_used_goes_to_others(store: Store, limits: str) -> None:
    """It was on its way when the queue was paused. Its run is the first again once the queue is resumed."""
    one, three = runs(store, "ac")
    two, four = runs(store, "bd", queue="other")
    wants = [SlotWant(each, "", SlotKind.STEP, 1) for each in limits]
    take(store, one, *wants)
    wait(store, two, *wants)
    wait(store, three, *wants)
    wait(store, four, *wants)
    give_up(store, one)
    assert set(holders(store, *"abcd")) == {"b"}
    paused(store, "other")
    assert the(store, "b").lease_expires_at is None
    for _ in range(3):
        store.sweep_slots(NOW, 100)
    assert set(holders(store, *"abcd")) == {"c"}
    assert store.lift(HoldKind.QUEUE, "other")
    store.sweep_slots(NOW, 100)
    give_up(store, claimed(store, "c"))
    store.sweep_slots(NOW, 100)
    assert set(holders(store, *"abcd")) == {"b"}
    two = claimed(store, "b")
    assert take(store, two, *wants).is_granted
    give_up(store, two)
    assert set(holders(store, *"abcd")) == {"d"}


def given_while_under_way(store: Store) -> RunRecord:
    """A run of a queue that was paused while a worker had it, with a slot that it waited for; another one waits."""
    one, three = runs(store, "ac")
    [two] = runs(store, "b", queue="other")
    take(store, one, X)
    assert not take(store, two, X).is_granted
    wait(store, three, X)
    give_up(store, one)
    paused(store, "other")
    store.sweep_slots(NOW, 100)
    assert holders(store, *"abc") == ["b"], "its worker may use it"
    return two


@pytest.mark.parametrize("how", ["parks", "is released", "is left by a dead worker"])
def test_a_slot_of_a_pass_that_ends_in_a_paused_queue_goes_to_others(store: Store, how: str) -> None:
    two, later = given_while_under_way(store), NOW
    if how == "parks":
        park(store, two, batch={"slots": SlotChange(awaited=["a"])})
    elif how == "is released":
        store.release([(two.id, two.fence)], NOW)
    else:
        later = NOW + 2 * LEASE
    for _ in range(3):
        store.sweep_slots(later, 100)
    assert holders(store, *"abc") == ["c"]
    assert store.lift(HoldKind.QUEUE, "other")
    give_up(store, claimed(store, "c"))
    store.sweep_slots(later, 100)
    assert holders(store, *"abc") == ["b"]


def test_a_pass_under_way_keeps_its_slot_when_its_queue_is_paused(store: Store) -> None:
    [one] = runs(store, "a", queue="other")
    [two] = runs(store, "b")
    take(store, one, X)
    wait(store, two, X)
    paused(store, "other")
    store.sweep_slots(NOW, 100)
    assert holders(store, *"ab") == ["a"]


def test_several_limits_are_taken_together_or_not_at_all(store: Store) -> None:
    one, two, three, four = runs(store, "abcd")
    take(store, one, Y)
    answer = wait(store, two, X, Y)
    assert answer.limit == "y"
    assert holders(store, "b") == []
    assert take(store, three, X).is_granted, "the one that waits for both holds none"
    give_up(store, one)
    assert holders(store, "b") == [], "now the other one is full, and it waits there"
    assert take(store, four, Y).is_granted
    give_up(store, three)
    assert holders(store, "b") == []
    give_up(store, four)
    assert holders(store, *"abcd") == ["b", "b"]
    assert the(store, "b").wake_at == NOW


def test_a_stale_worker_takes_nothing(store: Store) -> None:
    [one] = runs(store, "a")
    commit(store, one, run={"fence": one.fence + 1})
    with pytest.raises(LeaseLost):
        take(store, one)
    assert store.slots(["a"]) == []


def test_a_limit_that_nobody_has_defined(store: Store) -> None:
    [one] = runs(store, "a")
    with pytest.raises(UnknownLimitError, match=r'there is no limit "tpu": define it in DURABLE\["LIMITS"\]'):
        take(store, one, SlotWant("tpu"))
    assert take(store, one, SlotWant("tpu", "", SlotKind.STEP, 1)).is_granted
    assert take(store, one, SlotWant("tpu"), location="b").at_once == 1, "the row decides from then on"


def test_code_that_wants_another_key_gives_up_the_first(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, SlotWant("crm", "old", SlotKind.STEP, 1))
    wait(store, two, SlotWant("crm", "old", SlotKind.STEP, 1))
    assert take(store, one, SlotWant("crm", "new", SlotKind.STEP, 1)).is_granted
    store.sweep_slots(NOW, 10)
    found = {(each.run_id, each.key) for each in store.slots(["a", "b"]) if each.is_held}
    assert found == {("a", "new"), ("b", "old")}


def test_deleted_records_give_up_their_slots(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X)
    wait(store, two, X)
    park(store, one)
    wake = RunChange(run=transitions.woken(the(store, "a"), now=NOW), deleted=["a"])
    store.change("a", lambda _run, _entries: wake)
    store.sweep_slots(NOW, 10)
    assert holders(store, "a", "b") == ["b"]


def test_a_crashed_run_keeps_its_slot_and_its_place(store: Store) -> None:
    one, two, three = runs(store, "abc")
    take(store, one, X)
    assert take(store, two, X).place == 1
    assert take(store, three, X).place == 2
    again = [claimed(store, each, at(60)) for each in "cb"]
    assert [take(store, each, X).place for each in again] == [2, 1]
    assert holders(store, *"abc") == ["a"]
    finished(store, one)
    store.sweep_slots(at(60), 10)
    assert holders(store, *"abc") == ["b"]


def test_the_code_declares_another_number(store: Store) -> None:
    one, two = runs(store, "ab")
    take(store, one, X)
    wait(store, two, X)
    assert not store.declare_limit("x", 1)
    assert store.declare_limit("x", 2)
    assert store.sweep_slots(NOW, 10)[0] == {"q"}
    assert holders(store, "a", "b") == ["a", "b"]
    assert store.set_limit("x", 7) == 2
    assert store.declare_limit("x", 3)
    assert store.set_limit("x", None) == 7, "an operator's number is above the code's"
    assert store.set_limit("x", None) == 3
    assert store.declare_limit("new", 0)


@pytest.mark.postgres
class TestOnPostgres:
    """What an admission writes, and what its commit waits for."""

    def test_what_was_handed_on_is_found_without_writing(self, postgres_store: PostgresStore) -> None:
        one, two, three = runs(postgres_store, "abc")
        for each in (one, two):
            take(postgres_store, each)
        wait(postgres_store, three)
        give_up(postgres_store, one)
        three = claimed(postgres_store, "c")
        with transaction.atomic(using=POSTGRES), connections[POSTGRES].cursor() as cursor:
            assert take(postgres_store, three).is_granted
            cursor.execute("SELECT pg_current_xact_id_if_assigned()")
            assert cursor.fetchone() == (None,)
        with pytest.raises(LeaseLost):
            postgres_store.acquire("c", three.fence - 1, "a", [GPU], NOW)

    @pytest.mark.parametrize("is_alone", [True, False])
    @pytest.mark.parametrize("before", [2, 3], ids=["first in line", "behind another"])
    def test_a_place_in_line_waits_for_the_disk_in_the_transaction_of_others_only(
        self, postgres_store: PostgresStore, is_alone: bool, before: int
    ) -> None:
        *others, last = runs(postgres_store, "abcd"[: before + 1])
        for each in others:
            take(postgres_store, each)
        has_place, disk = self.acquired(last, is_alone)
        assert (has_place, disk) == (True, "off" if is_alone else "on")

    def test_a_slot_waits_for_the_disk(self, postgres_store: PostgresStore) -> None:
        [one] = runs(postgres_store, "a")
        assert self.acquired(one, is_alone=True) == (False, "on")

    def acquired(self, run: RunRecord, is_alone: bool) -> tuple[bool, str]:
        """Whether the run has a place in the line, and whether its commit waits for the disk."""
        given = [run.id, str(run.fence), "a", '[["gpu", "", "step", 2]]', NOW.isoformat(), str(is_alone)]
        with transaction.atomic(using=POSTGRES), connections[POSTGRES].cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit TO on")
            line = sql_functions.ACQUIRE(POSTGRES, given)[2]
            cursor.execute("SHOW synchronous_commit")
            [disk] = cursor.fetchone()
        return line is not None, disk

    def test_a_run_that_is_paused_before_it_learns_of_its_slot_is_not_woken(
        self, postgres_store: PostgresStore
    ) -> None:
        """Its row was locked when the slot came, so a note tells the sweep of it."""
        (one, two), want = runs(postgres_store, "ab"), SlotWant("x", "", SlotKind.OPEN, 1)
        take(postgres_store, one, want)
        wait(postgres_store, two, want)
        with transaction.atomic(using=POSTGRES), ThreadPoolExecutor(1) as other:
            Run.objects.using(POSTGRES).select_for_update().get(id="b")
            assert other.submit(give_up, postgres_store, one).result(60) == frozenset()
            other.submit(connections.close_all).result(60)
            changed(postgres_store, "b", transitions.paused_at_once, summary="paused")
        queues, _ = postgres_store.sweep_slots(NOW, 10)
        assert (queues, the(postgres_store, "b").wake_at, holders(postgres_store, "b")) == (frozenset(), None, ["b"])


# -- A commit that gives up slots is one statement on PostgreSQL, whatever else it writes, and however it is sent


ONE = SlotWant("gpu", "a/b 🎉", at_once=1)
GIVEN_UP = SlotChange(released=["it's / here"])

#: What a commit writes besides, by the function that writes it.
PARTS: dict[str, Callable[[RunRecord], dict[str, Any]]] = {
    "record": lambda _: {"entries": [an_entry("it's / here")]},
    "flush": lambda _: {"entries": [an_entry("it's / here"), an_entry("b")]},
    "complete": lambda held: {"run": transitions.completed(held, now=NOW, output="1")},
    "complete a child": lambda held: {"run": transitions.completed(held, now=NOW, output="1"), "parent_id": "parent"},
    "commit": lambda _: {"run": {"waiting_for": "x", "summary": ""}, "entries": [an_entry("b")]},
    "fail": lambda held: {"run": CALLS["failed"](held), "failure": a_failure(held.id)},
    "children": lambda held: {"starts": (a_child("child", held.id),)},
}


def holding(store: PostgresStore) -> tuple[RunRecord, RunRecord]:
    """A run that has the one slot, and one that waits for it."""
    first, second = started(store, "first"), started(store, "second")
    assert store.acquire("first", first.fence, "it's / here", [ONE], NOW).is_granted
    assert not store.acquire("second", second.fence, "x", [ONE], NOW).is_granted
    return first, second


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("is_observed", [False, True], ids=["directly", "through a cursor"])
def test_the_slot_is_handed_on_in_the_statement(postgres_store: PostgresStore, parts: str, is_observed: bool) -> None:
    first, _ = holding(postgres_store)
    given = {**PARTS[parts](first), "slots": GIVEN_UP}
    if is_observed:
        with CaptureQueriesContext(connections[postgres_store.alias]) as queries:
            commit(postgres_store, first, **given)
        assert len(queries) == 1, [each["sql"] for each in queries.captured_queries]
    else:
        commit(postgres_store, first, **given)
    assert holders(postgres_store, "first", "second") == ["second"]


@pytest.mark.parametrize("parts", PARTS)
def test_a_session_with_leftovers_does_it_too(postgres_store: PostgresStore, parts: str) -> None:
    first, _ = holding(postgres_store)
    with sessions.guarded():
        with connections[postgres_store.alias].cursor() as cursor:
            cursor.execute("SET work_mem = '5MB'")
        commit(postgres_store, first, **PARTS[parts](first), slots=GIVEN_UP)
    assert holders(postgres_store, "first", "second") == ["second"]


@pytest.mark.parametrize("parts", PARTS)
def test_an_older_fence_gives_up_nothing(postgres_store: PostgresStore, parts: str) -> None:
    first, _ = holding(postgres_store)
    newer = claimed(postgres_store, "first", at(9_999))
    assert newer.fence > first.fence
    with pytest.raises(LeaseLost):
        commit(postgres_store, first, **PARTS[parts](first), slots=GIVEN_UP)
    assert holders(postgres_store, "first", "second") == ["first"]
