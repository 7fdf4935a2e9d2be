"""Runs in doubt, as each store keeps them: which are, what their first pass loads, and when it is over."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from durable.core.control_flow import LeaseLost
from durable.core.records import ChildRecord, ChildStart, DoubtOver
from durable.core.time_limits import RunLimits
from durable.store import Store
from tests.store.family import start_children
from tests.store.making import LEASE, NOW, a_new_run, a_run, an_entry, at, commit, finished, started, the

SINCE = NOW + timedelta(hours=1)


def doubt(store: Store, run_id: str = "run") -> datetime | None:
    limits = store.limits(run_id)
    return None if limits is None else limits.in_doubt


def loaded(store: Store, run_id: str = "run") -> datetime | None:
    """What a pass loads, one at a time and among others."""
    one, short = store.load(run_id).limits, store.load_short([run_id], 99, 9_999)[run_id].limits
    assert one == short
    return None if one is None else one.in_doubt


def test_all_open_runs_are_put_in_doubt_whatever_they_do(store: Store) -> None:
    store.create([a_run("new"), a_run("later", wake_at=at(99_999))])
    started(store, "at work")
    finished(store, started(store, "over"))
    assert [store.put_in_doubt(SINCE, 2) for _ in range(3)] == [2, 1, 0]
    assert {each: doubt(store, each) for each in ("new", "later", "at work", "over")} == {
        "new": SINCE,
        "later": SINCE,
        "at work": SINCE,
        "over": None,
    }


def test_a_new_run_has_a_history_from_then_on_and_a_worker_keeps_its_lease(store: Store) -> None:
    store.create([a_run("new")])
    held = started(store, "at work")
    store.put_in_doubt(SINCE, 10)
    assert the(store, "new").fence == 1
    assert loaded(store, "new") == SINCE
    commit(store, held, entries=[an_entry("a")])


def test_its_limits_stay(store: Store) -> None:
    limits = RunLimits(deadline=at(60), length=5.0, work_limit=2.0)
    store.create([a_new_run("run", limits=limits)])
    store.put_in_doubt(SINCE, 10)
    found = store.limits("run")
    assert found is not None
    assert (found.deadline, found.length, found.work_limit, found.in_doubt) == (at(60), 5.0, 2.0, SINCE)
    assert store.load("run").limits == found


def test_a_later_restore_puts_it_in_doubt_again(store: Store) -> None:
    store.create([a_run()])
    store.put_in_doubt(SINCE, 10)
    again = SINCE + timedelta(days=1)
    assert store.put_in_doubt(again, 10) == 1
    assert loaded(store) == again


def test_a_commit_says_that_it_is_over(store: Store) -> None:
    held = started(store)
    store.put_in_doubt(SINCE, 10)
    commit(store, held, entries=[an_entry("a")], changes={DoubtOver: [DoubtOver()]})
    assert doubt(store) is None
    assert loaded(store) is None
    assert [each.location for each in store.load("run")] == ["a"]


def test_a_worker_that_lost_its_lease_ends_no_doubt(store: Store) -> None:
    held = started(store)
    until = NOW + timedelta(days=1)
    assert store.claim_run("run", now=until, lease_until=until + LEASE, worker="other") is not None
    store.put_in_doubt(SINCE, 10)
    with pytest.raises(LeaseLost):
        commit(store, held, entries=[an_entry("a")], changes={DoubtOver: [DoubtOver()]})
    assert doubt(store) == SINCE


def test_a_child_may_begin_in_doubt(store: Store) -> None:
    parent = started(store, "parent")
    child = a_new_run("child", parent_id="parent").in_doubt(SINCE)
    record = ChildRecord(run_id="child", parent_id="parent", location="child", position=1)
    start_children(store, parent, ChildStart(child, record))
    assert (loaded(store, "child"), the(store, "child").fence) == (SINCE, 1)
