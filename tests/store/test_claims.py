"""Claiming, renewing and releasing runs."""

from __future__ import annotations

from typing import Any

import pytest

from durable.core import transitions
from durable.core.records import Request, RunChange, RunRecord, RunState
from durable.core.witnesses import is_of_first_claim
from durable.store import Store
from durable.store.base import Released
from tests.store.making import LEASE, NOW, a_run, at, finished, park, started, the


def claim(store: Store, *queues: str, limit: int = 10, seconds: float = 0) -> list[RunRecord]:
    now = at(seconds)
    return store.claim(queues=queues or ["q"], now=now, lease_until=now + LEASE, worker="w1", limit=limit)


def test_a_claimed_run_has_a_new_fence_a_lease_a_worker_and_a_start(store: Store) -> None:
    store.create([a_run(fence=4)])
    [run] = claim(store)
    assert (run.lease_expires_at, run.worker, run.started_at) == (NOW + LEASE, "w1", NOW)
    assert run.fence == the(store).fence > 4
    assert (run.state, run.crashes) == (RunState.RUNNING, 0)
    assert the(store) == run


def test_the_longest_due_come_first(store: Store) -> None:
    store.create(
        [a_run("c", wake_at=at(-1)), a_run("a", wake_at=at(-3)), a_run("b", wake_at=at(-2)), a_run("d", wake_at=at(-1))]
    )
    assert [run.id for run in claim(store, limit=3)] == ["a", "b", "c"]
    assert [run.id for run in claim(store)] == ["d"]


@pytest.mark.parametrize("queues", [["q"], ["q", "other"], ["other"], ["none"]])
def test_only_the_queues_asked_for_are_served(store: Store, queues: list[str]) -> None:
    store.create([a_run("a"), a_run("b", queue="other")])
    expected = [run_id for run_id, queue in (("a", "q"), ("b", "other")) if queue in queues]
    assert [run.id for run in claim(store, *queues)] == expected


@pytest.mark.parametrize("values", [{"wake_at": None}, {"wake_at": at(0.000001)}, {"state": RunState.PAUSED}])
def test_a_run_that_is_not_due_is_left(store: Store, values: dict[str, Any]) -> None:
    store.create([a_run(**values)])
    assert claim(store) == []


def test_an_ended_run_is_left(store: Store) -> None:
    held = started(store)
    finished(store, held)
    assert claim(store, seconds=1000) == []
    assert store.claim_run("run", now=at(1000), lease_until=at(2000), worker="w") is None


def test_a_live_lease_protects(store: Store) -> None:
    started(store)
    assert claim(store, seconds=29.9) == []
    assert store.claim_run("run", now=at(29.9), lease_until=at(60), worker="w") is None


def test_a_lease_that_ran_out_counts_as_a_crash(store: Store) -> None:
    first = started(store)
    [second] = claim(store, seconds=30)
    assert (second.crashes, second.started_at) == (1, NOW)
    assert second.fence > first.fence
    [third] = claim(store, seconds=90)
    assert third.crashes == 2


def test_rolling_back_stays_rolling_back(store: Store) -> None:
    store.create([a_run(state=RunState.ROLLING_BACK)])
    assert [run.state for run in claim(store)] == [RunState.ROLLING_BACK]


@pytest.mark.parametrize("wake_at", [None, at(3600), at(-60)])
def test_a_run_can_be_taken_whether_or_not_it_is_due(store: Store, wake_at: object) -> None:
    store.create([a_run(wake_at=wake_at)])
    run = store.claim_run("run", now=NOW, lease_until=NOW + LEASE, worker="w1")
    assert run is not None
    assert (run.worker, run.state, run.lease_expires_at) == ("w1", RunState.RUNNING, NOW + LEASE)
    assert is_of_first_claim(run.fence)
    assert the(store) == run


def test_a_run_taken_before_it_was_due_is_found_again_when_its_worker_dies(store: Store) -> None:
    store.create([a_run(wake_at=None)])
    store.claim_run("run", now=NOW, lease_until=NOW + LEASE, worker="w1")
    assert [run.crashes for run in claim(store, seconds=31)] == [1]


def test_a_paused_or_missing_run_is_not_taken(store: Store) -> None:
    store.create([a_run(state=RunState.PAUSED)])
    assert store.claim_run("run", now=NOW, lease_until=NOW + LEASE, worker="w1") is None
    assert store.claim_run("none", now=NOW, lease_until=NOW + LEASE, worker="w1") is None


def test_renewing_prolongs_what_is_held_and_tells_of_requests(store: Store) -> None:
    a, b = started(store, "a"), started(store, "b", pending_request=Request.PAUSE)
    assert store.renew([("a", a.fence), ("b", b.fence)], at(99)) == ({"a": "", "b": "pause"}, frozenset())
    assert the(store, "a").lease_expires_at == the(store, "b").lease_expires_at == at(99)


def test_what_was_lost_is_missing_from_a_renewal(store: Store) -> None:
    held = started(store)
    [again] = claim(store, seconds=31)
    assert store.renew([("run", held.fence), ("none", 1)], at(999)) == ({}, frozenset())
    assert the(store) == again


def test_a_lease_that_ran_out_but_was_not_taken_can_be_renewed(store: Store) -> None:
    held = started(store)
    assert store.renew([("run", held.fence)], at(99)) == ({"run": ""}, frozenset())
    assert claim(store, seconds=98) == []


def test_a_renewal_that_comes_after_the_run_was_parked_gives_it_no_lease(store: Store) -> None:
    held = started(store)
    park(store, held)
    assert store.renew([("run", held.fence)], at(99)) == ({}, frozenset())
    assert the(store).lease_expires_at is None


def test_a_released_run_is_due_at_once_and_no_crash(store: Store) -> None:
    held = started(store)
    store.release([("run", held.fence)], at(1))
    run = the(store)
    assert (run.lease_expires_at, run.worker, run.state, run.crashes) == (None, "", RunState.PENDING, 0)
    assert run.wake_at == NOW, "it keeps its place among the due"
    [again] = claim(store, seconds=1)
    assert again.crashes == 0


def test_a_crash_that_was_counted_stays_counted_when_the_run_is_released(store: Store) -> None:
    started(store)
    [second] = claim(store, seconds=31)
    store.release([("run", second.fence)], at(32))
    assert the(store).crashes == 1


def test_releasing_what_was_lost_changes_nothing(store: Store) -> None:
    held = started(store)
    [again] = claim(store, seconds=31)
    store.release([("run", held.fence), ("none", 7)], at(32))
    assert the(store) == again


def test_a_release_says_which_queue_a_run_has_been_moved_to(store: Store) -> None:
    held = [(each, started(store, each).fence) for each in ("here", "there")]
    store.change("there", lambda run, _entries: RunChange(run=transitions.requeued(run, queue="new", now=NOW)))
    assert store.release(held, at(1)) == Released(frozenset(), frozenset({"q", "new"}))


def test_renewing_and_releasing_nothing_is_allowed(store: Store) -> None:
    assert store.renew([], NOW) == ({}, frozenset())
    assert store.release([], NOW) == Released(frozenset(), frozenset())


def test_the_next_deadline_is_the_earliest_later_one_of_the_queues(store: Store) -> None:
    store.create(
        [
            a_run("past", wake_at=at(-5)),
            a_run("now", wake_at=NOW),
            a_run("b", wake_at=at(20)),
            a_run("a", wake_at=at(10)),
            a_run("other", wake_at=at(1), queue="other"),
            a_run("paused", wake_at=at(2), state=RunState.PAUSED),
            a_run("never", wake_at=None),
        ]
    )
    assert store.next_deadline(["q"], NOW) == at(10)
    assert store.next_deadline(["q", "other"], NOW) == at(1)
    assert store.next_deadline(["q"], at(20)) is None
    assert store.next_deadline([], NOW) is None


def test_the_due_queues_have_due_runs_and_runs_whose_lease_ran_out(store: Store) -> None:
    store.create(
        [
            a_run("due", queue="b"),
            a_run("due too", queue="b"),
            a_run("later", queue="c", wake_at=at(5)),
            a_run("paused", queue="d", state=RunState.PAUSED),
            a_run("crashed", queue="a"),
        ]
    )
    store.claim_run("crashed", now=NOW, lease_until=at(1), worker="w")
    assert store.due_queues(NOW) == ["b"]
    assert store.due_queues(at(1)) == ["a", "b"]
