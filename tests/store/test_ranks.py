"""Runs with a head start or a share: in which order they are claimed, and that none is claimed before it is due."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from durable.core import transitions
from durable.core.limits.ranks import Ranking
from durable.core.records import RunRecord, RunState
from durable.store import Store
from tests.store.children import a_child, a_member, change, end, spec, start_children
from tests.store.making import NOW, a_message, a_new_run, at, changed, claimed, finished, park, the

HIGH = Ranking(priority="high", head_start=600)
LOW = Ranking(priority="low", head_start=-3600)
HELD = timedelta(days=1)  # no lease runs out here, but where a test is about that


def start(store: Store, *names: str, ranking: Ranking | None = None, now: datetime = NOW, **values: Any) -> None:
    of_all = {"wake_at": now, "created_at": now, "ranking": ranking}
    store.create([a_new_run(name, **{**of_all, **values}) for name in names])


def share(name: str, weight: float = 1.0, head_start: int = 0) -> Ranking:
    return Ranking(share=name, weight=weight, head_start=head_start)


def claim(store: Store, now: datetime = NOW, limit: int = 100, since: Any = None) -> list[RunRecord]:
    return store.claim(queue="q", now=now, lease_until=now + HELD, worker="w", limit=limit, since=since)


def names(runs: list[RunRecord]) -> list[str]:
    return [run.id for run in runs]


def one_by_one(store: Store, now: datetime = NOW) -> list[str]:
    found: list[str] = []
    while run := claim(store, now, limit=1):
        found += names(run)
    return found


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_head_start_is_so_much_of_a_wait(store: Store, limit: int) -> None:
    start(store, "plain-9-min", wake_at=at(-540))
    start(store, "plain-11-min", wake_at=at(-660))
    start(store, "plain-now")
    start(store, "low", ranking=LOW)
    start(store, "low-hours", ranking=LOW, wake_at=at(-7200))
    start(store, "high", ranking=HIGH)
    found: list[str] = []
    while runs := claim(store, limit=limit):
        found += names(runs)
    assert found == ["low-hours", "plain-11-min", "high", "plain-9-min", "plain-now", "low"]


def test_a_run_is_not_claimed_before_it_is_due_whatever_its_head_start(store: Store) -> None:
    start(store, "later", ranking=HIGH, wake_at=at(1))
    assert claim(store) == []
    assert names(claim(store, at(1))) == ["later"]


def test_a_low_run_is_claimed_at_once_where_nothing_else_is_due(store: Store) -> None:
    start(store, "low", ranking=LOW)
    start(store, "asleep", ranking=HIGH, wake_at=at(1))
    assert names(claim(store)) == ["low"]


def test_no_head_start_starves_what_waits_for_longer(store: Store) -> None:
    start(store, "plain")
    claimed: list[str] = []
    for minute in range(23):
        now = at(60 * minute)
        start(store, f"high-{minute:02}", ranking=HIGH, now=now)
        claimed += names(claim(store, now, limit=1))
        start(store, f"also-{minute:02}", ranking=HIGH, now=now)
    assert claimed.index("plain") == 2 * 11, "all that started in its first ten minutes come first, and no others"


def move(store: Store, run_id: str, queue: str, now: datetime = NOW) -> None:
    changed(store, run_id, transitions.requeued, queue=queue, now=now)


def test_a_run_takes_its_rank_to_the_queue_that_it_is_moved_to(store: Store) -> None:
    start(store, "high", ranking=HIGH, queue="dead", wake_at=at(-60))
    start(store, "plain", wake_at=at(-300))
    move(store, "high", "q")
    assert one_by_one(store) == ["high", "plain"]
    assert claim(store, at(60)) == []


def test_a_run_of_a_share_has_its_turn_in_the_queue_that_it_is_moved_to(store: Store) -> None:
    """Behind the runs of its share that wait there, whatever its tag in the queue before was."""
    start(store, "a0", ranking=share("a"), queue="dead")
    start(store, "a1", "a2", ranking=share("a"))
    start(store, "b1", "b2", "b3", ranking=share("b"))
    move(store, "a0", "q")
    assert one_by_one(store, at(1)) == ["a1", "b1", "a2", "b2", "a0", "b3"]


def test_runs_of_shares_have_their_turns_in_a_queue_that_had_no_run_of_the_shares(store: Store) -> None:
    start(store, "a1", "a2", "a3", ranking=share("a"), queue="dead")
    start(store, "b1", "b2", "b3", ranking=share("b"), queue="dead")
    for each in ("a1", "a2", "a3", "b1", "b2", "b3"):
        move(store, each, "q")
    assert one_by_one(store, at(1)) == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_a_run_that_is_moved_is_found_by_a_claim_that_begins_where_the_one_before_ended(store: Store) -> None:
    start(store, "due", queue="dead", wake_at=at(-3600))
    start(store, "asleep", queue="dead", wake_at=at(90))
    start(store, "high", ranking=HIGH, queue="dead", wake_at=at(-3600))
    claim(store, at(9))
    for each in ("due", "high", "asleep"):
        move(store, each, "q", at(10))
    assert the(store, "asleep").wake_at == at(90)
    assert sorted(names(claim(store, at(10), since=(at(9), "")))) == ["due", "high"]


def test_a_lease_that_ran_out_keeps_the_rank(store: Store) -> None:
    start(store, "high", ranking=HIGH)
    start(store, "plain", wake_at=at(-60))
    assert names(claim(store, limit=1)) == ["high"]
    runs = claim(store, NOW + HELD, limit=1)
    assert [(run.id, run.crashes) for run in runs] == [("high", 1)]


def test_a_released_run_keeps_its_rank(store: Store) -> None:
    start(store, "high", ranking=HIGH)
    start(store, "plain", wake_at=at(-60))
    [run] = claim(store, limit=1)
    store.release([(run.id, run.fence)], NOW)
    assert names(claim(store, limit=1)) == ["high"]


def test_a_run_that_wakes_has_its_head_start_again(store: Store) -> None:
    start(store, "high", ranking=HIGH)
    [run] = claim(store)
    park(store, run, wake_at=at(100))
    start(store, "plain", wake_at=at(50))
    assert names(claim(store, at(99))) == ["plain"]
    start(store, "other", wake_at=at(50))
    assert names(claim(store, at(100), limit=1)) == ["high"]


def test_a_message_wakes_it_with_its_head_start(store: Store) -> None:
    start(store, "high", ranking=HIGH)
    [run] = claim(store)
    park(store, run, waiting_for="/mail/")
    start(store, "plain", wake_at=at(-60))
    store.send([a_message("high", sent_at=at(5))])
    assert names(claim(store, at(5), limit=1)) == ["high"]


def test_a_paused_run_is_left(store: Store) -> None:
    start(store, "high", ranking=HIGH, state=RunState.PAUSED)
    start(store, "shared", ranking=share("a"), state=RunState.PAUSED)
    assert claim(store) == []


# -- shares


def test_a_single_run_of_another_share_is_next(store: Store) -> None:
    start(store, *(f"a-{number:02}" for number in range(9)), ranking=share("a"))
    start(store, "b", ranking=share("b"))
    assert names(claim(store, limit=2)) == ["a-00", "b"]
    start(store, "c", ranking=share("c"))
    assert names(claim(store, limit=2)) == ["c", "a-01"]


def test_a_share_is_next_where_no_claim_has_been_for_longer_than_another_shares_backlog(store: Store) -> None:
    start(store, *(f"a-{number:02}" for number in range(9)), ranking=share("a"))
    start(store, "b", ranking=share("b"), now=at(3600))
    assert names(claim(store, at(3600), limit=2)) == ["a-00", "b"]


def test_a_delayed_run_does_not_move_its_share(store: Store) -> None:
    start(store, "a-0", "a-1", ranking=share("a"))
    start(store, "later", ranking=share("a"), now=at(9), wake_at=at(10))
    assert one_by_one(store, at(9)) == ["a-0", "a-1"]
    start(store, "a-2", "a-3", ranking=share("a"), now=at(9))
    start(store, "b", ranking=share("b"), now=at(9))
    assert one_by_one(store, at(10)) == ["a-2", "b", "a-3", "later"]


def test_shares_take_turns(store: Store) -> None:
    for name in "abc":
        start(store, *(f"{name}-{number}" for number in range(3)), ranking=share(name))
    assert one_by_one(store) == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1", "a-2", "b-2", "c-2"]


def test_so_they_do_where_each_run_is_started_alone(store: Store) -> None:
    for number in range(3):
        start(store, f"a-{number}", ranking=share("a"))
    for number in range(3):
        start(store, f"b-{number}", ranking=share("b"))
    assert one_by_one(store) == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]


def test_a_share_of_weight_two_has_two_turns(store: Store) -> None:
    start(store, *(f"a-{number}" for number in range(4)), ranking=share("a", weight=2))
    start(store, *(f"b-{number}" for number in range(2)), ranking=share("b"))
    assert one_by_one(store) == ["a-0", "b-0", "a-1", "a-2", "b-1", "a-3"]


def test_a_share_that_had_the_workers_alone_is_not_behind_for_that(store: Store) -> None:
    start(store, *(f"early-{number:03}" for number in range(12)), ranking=share("a"))
    assert len(one_by_one(store)) == 12
    for name in "ab":
        start(store, *(f"{name}-{number}" for number in range(2)), ranking=share(name), now=at(5))
    assert one_by_one(store, at(5)) == ["a-0", "b-0", "a-1", "b-1"]


def test_slow_workers_serve_shares_alike(store: Store) -> None:
    """Another share's run is next, though the moments of all tags but one have passed."""
    start(store, *(f"a-{number:02}" for number in range(9)), ranking=share("a"))
    assert names(claim(store, limit=2)) == ["a-00", "a-01"]
    start(store, "b", ranking=share("b"), now=at(1000))
    assert names(claim(store, at(1000), limit=2)) == ["b", "a-02"]


def test_a_plain_run_waits_for_no_backlog(store: Store) -> None:
    start(store, *(f"a-{number}" for number in range(9)), ranking=share("a"))
    start(store, "plain", now=at(1))
    assert names(claim(store, at(1), limit=3)) == ["a-0", "a-1", "plain"]


def test_delayed_runs_take_their_turns_when_they_are_due(store: Store) -> None:
    start(store, *(f"a-{number}" for number in range(3)), ranking=share("a"), wake_at=at(60))
    start(store, "a-now", ranking=share("a"))
    start(store, "b", ranking=share("b"), wake_at=at(61))
    assert names(claim(store)) == ["a-now"]
    assert names(claim(store, at(61), limit=2)) == ["a-0", "b"]
    assert names(claim(store, at(61))) == ["a-1", "a-2"]


def test_a_turn_is_taken_once(store: Store) -> None:
    start(store, *(f"a-{number}" for number in range(3)), ranking=share("a"))
    for run in claim(store):
        park(store, run, wake_at=at(10))
    start(store, "b", ranking=share("b"), now=at(11))
    assert names(claim(store, at(11))) == ["a-0", "a-1", "a-2", "b"]


def test_a_clock_that_is_set_back_hides_no_run(store: Store) -> None:
    start(store, "a-0", "a-1", ranking=share("a"), now=at(3600))
    start(store, "a-2", ranking=share("a"), now=NOW)
    start(store, "b", ranking=share("b"), now=NOW)
    assert names(claim(store)) == ["b", "a-2"]
    assert names(claim(store, at(3600))) == ["a-0", "a-1"]


def test_what_was_said_is_kept(store: Store) -> None:
    ranking = Ranking(priority="10 min", head_start=600, share="tenant-7", weight=0.5)
    start(store, "a", ranking=ranking)
    start(store, "b")
    assert store.rankings(["a", "b", "none"]) == {"a": ranking}
    [run] = claim(store, limit=1)
    finished(store, run)
    assert store.rankings(["a"]) == {"a": ranking}


def test_a_run_taken_by_name_has_had_its_turn(store: Store) -> None:
    start(store, "a-0", "a-1", "a-2", ranking=share("a"))
    run = claimed(store, "a-2")
    park(store, run, wake_at=at(1))
    start(store, "b-0", "b-1", ranking=share("b"), now=at(1))
    assert names(claim(store, at(1))) == ["a-0", "b-0", "a-1", "a-2", "b-1"]


# -- children


def test_a_child_has_the_rank_of_its_parent_unless_its_start_says_another(store: Store) -> None:
    of_parent = Ranking(priority="high", head_start=600, share="a", weight=2.0)
    start(store, "parent", ranking=of_parent)
    [parent] = claim(store)
    lower = Ranking(priority="low", head_start=-3600)
    start_children(
        store,
        parent,
        a_child("same", ranking=None),
        a_child("low", ranking=lower),
        a_child("of-b", ranking=Ranking(share="b")),
        a_child("later", wake_at=at(60), ranking=None),
    )
    assert store.rankings(["same", "low", "of-b", "later"]) == {
        "same": of_parent,
        "low": Ranking(priority="low", head_start=-3600, share="a", weight=2.0),
        "of-b": Ranking(priority="high", head_start=600, share="b"),
        "later": of_parent,
    }
    start(store, "plain")
    assert one_by_one(store) == ["of-b", "same", "plain", "low"]
    assert names(claim(store, at(60))) == ["later"]


def test_a_child_of_a_plain_parent_can_have_a_rank(store: Store) -> None:
    start(store, "parent", "first")
    [parent] = claim(store, limit=1)[:1]
    start_children(
        store, the(store, parent.id), a_child("none", parent.id, ranking=None), a_child("high", parent.id, ranking=HIGH)
    )
    assert store.rankings(["none", "high"]) == {"high": HIGH}
    assert one_by_one(store)[0] == "high"


def test_children_of_a_map_have_the_rank_of_their_parent(store: Store) -> None:
    start(store, "parent", ranking=Ranking(priority="high", head_start=600, share="a"))
    held = claimed(store, "parent")
    members = [a_member(number) for number in range(3)]
    change(store, held, new=spec(3), starts=members, created=3)
    ids = [run.id for run, _ in members]
    assert store.rankings(ids) == dict.fromkeys(ids, Ranking(priority="high", head_start=600, share="a"))
    start(store, "plain")
    assert one_by_one(store) == [*ids[:2], "plain"], "the third waits for its turn in the map"
    end(store, 0)
    start(store, "other")
    assert one_by_one(store) == [ids[2], "other"]


def test_children_of_several_parents_take_turns_as_their_shares_do(store: Store) -> None:
    for name in "ab":
        start(store, name, ranking=share(name))
    for parent in claim(store):
        start_children(
            store, parent, *(a_child(f"{parent.id}{number}", parent.id, ranking=None) for number in range(3))
        )
    assert one_by_one(store) == ["a0", "b0", "a1", "b1", "a2", "b2"]


# -- lower bounds


def test_a_bounded_claim_finds_a_backlog_of_any_tag(store: Store) -> None:
    start(store, *(f"a-{number}" for number in range(3)), ranking=share("a"), now=at(-60))
    assert names(claim(store, since=(at(-1), ""))) == ["a-0", "a-1", "a-2"]
    start(store, *(f"b-{number}" for number in range(3)), ranking=share("b"))
    assert names(claim(store, at(100), since=(at(99), ""))) == ["b-0", "b-1", "b-2"]


def test_the_row_says_nothing_of_ranks(store: Store) -> None:
    start(store, "high", ranking=HIGH)
    assert the(store, "high").wake_at == NOW
    assert timedelta(0) == NOW - the(store, "high").created_at
