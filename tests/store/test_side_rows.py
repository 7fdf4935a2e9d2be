"""What is stored beside a run, in each store: what steps save, limits of the run, tags, statuses and doubts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.apps import apps

from durable.core.control_flow import LeaseLost
from durable.core.new_runs import NewRun
from durable.core.records import (
    Batch,
    DoubtOver,
    RunChange,
    RunRecord,
    SavedDetails,
    Status,
    StatusRecord,
    TagChange,
)
from durable.core.time_limits import RunLimits
from durable.models import RunLimit
from durable.models.rows import Recorded
from durable.store import Store
from tests.store.children import a_child, start_children
from tests.store.making import (
    HOSTILE,
    NOW,
    a_new_run,
    a_run,
    again,
    an_entry,
    at,
    claimed,
    commit,
    finished,
    held,
    started,
    the,
)


def a_save(held: RunRecord, **values: Any) -> SavedDetails:
    given = {"run_id": held.id, "location": "a", "generation": 0, "fence": held.fence, "attempt": 1, "number": 1}
    return SavedDetails(**{**given, "details": "1", **values})


def stored(store: Store, run_id: str = "run") -> dict[str, str]:
    loaded = {name: each.details for name, each in store.load(run_id).saved.items()}
    short = {name: each.details for name, each in store.load_short([run_id], 99, 9999)[run_id].saved.items()}
    assert short == loaded
    return loaded


def test_it_is_loaded_with_the_history(store: Store) -> None:
    held = started(store)
    store.save_details([a_save(held), a_save(held, location="b/c", details="2")])
    assert stored(store) == {"a": "1", "b/c": "2"}
    assert store.load("run") == []
    commit(store, held, entries=[an_entry("a"), an_entry("x")])
    assert stored(store) == {"a": "1", "b/c": "2"}
    assert len(store.load("run")) == 2


def test_any_text(store: Store) -> None:
    for number, text in enumerate(HOSTILE):
        held = started(store, f"run {number}")
        store.save_details([a_save(held, details=text)])
        assert stored(store, held.id) == {"a": text}


@pytest.mark.parametrize(
    "later", [{"number": 2}, {"attempt": 2, "number": 1}, {"generation": 1, "attempt": 1, "number": 1}]
)
def test_the_later_one_stays_whatever_comes_first(store: Store, later: dict[str, Any]) -> None:
    held = started(store)
    first, second = a_save(held, attempt=1, number=1), a_save(held, details="2", **later)
    store.save_details([first])
    store.save_details([second])
    store.save_details([first])
    assert stored(store) == {"a": "2"}
    assert store.load("run").saved["a"].generation == second.generation


def test_a_worker_that_has_lost_the_run_writes_nothing(store: Store) -> None:
    held = started(store)
    late = a_save(held, attempt=9, number=9, details="late")
    taken = claimed(store, "run", NOW + timedelta(days=1))
    store.save_details([late])
    assert stored(store) == {}
    store.save_details([a_save(taken)])
    store.save_details([late])
    assert stored(store) == {"a": "1"}


def test_a_run_without_a_lease_gets_none(store: Store) -> None:
    held = started(store)
    commit(store, held, run={"state": "sleeping", "lease_expires_at": None, "worker": ""})
    store.save_details([a_save(held)])
    assert stored(store) == {}


def test_the_commit_of_a_failed_attempt_writes_it(store: Store) -> None:
    held = started(store)
    commit(store, held, entries=[an_entry("a")], saved=[a_save(held, details="2", number=2)])
    store.save_details([a_save(held, number=1)])  # it was under way, and comes late
    assert stored(store) == {"a": "2"}
    commit(store, held, saved=[a_save(held, attempt=2, details="3")], entries=[an_entry("a")])
    assert stored(store) == {"a": "3"}


def test_the_commit_of_a_completed_step_deletes_it(store: Store) -> None:
    held = started(store)
    store.save_details([a_save(held), a_save(held, location="b")])
    commit(store, held, entries=[an_entry("a")], forgotten=["a"])
    assert stored(store) == {"b": "1"}


def test_a_change_writes_and_deletes_it(store: Store) -> None:
    held = started(store)
    store.save_details([a_save(held)])
    change = RunChange(run={}, deleted=["a"], saved=[a_save(held, location="b", details="2")])
    store.change("run", lambda _run, _entries: change)
    assert stored(store) == {"b": "2"}


def test_of_another_run_nothing_is_loaded(store: Store) -> None:
    held = started(store)
    store.create([a_run("other")])
    store.save_details([a_save(held)])
    assert store.load("other").saved == {}
    assert replace(a_save(held), details="") == replace(store.load("run").saved["a"], details="", fence=held.fence)


# -- limits of runs: stored with the run, loaded with its history, renewed when it continues


LIMITS = RunLimits(deadline=NOW + timedelta(days=1), length=86400.0, work_limit=60.0)


def a_limited_run(run_id: str = "run", limits: RunLimits | None = LIMITS) -> NewRun:
    run = a_run(run_id)
    return NewRun(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"fence": 1}, limits=limits)


def test_they_are_loaded_with_the_history(store: Store) -> None:
    store.create([a_limited_run(), a_limited_run("other", replace(LIMITS, deadline=None, length=None)), a_run("plain")])
    assert store.load("run").limits == LIMITS
    assert store.load("other").limits == RunLimits(work_limit=60.0)
    assert store.load("plain").limits is None
    found = store.load_short(["run", "other", "plain"], 10, 1000)
    assert {name: each.limits for name, each in found.items()} == {
        "run": LIMITS,
        "other": RunLimits(work_limit=60.0),
        "plain": None,
    }
    assert all(each == [] for each in found.values())
    assert store.limits("run") == LIMITS
    assert store.limits("plain") is None


def test_beside_entries(store: Store) -> None:
    store.create([a_limited_run("limited"), a_limited_run("plain", None)])
    held = started(store)
    commit(store, held, entries=[an_entry("a"), an_entry("b")])
    assert store.load("run").limits is None
    assert len(store.load("run")) == 2


def test_a_taken_id_keeps_its_limits(store: Store) -> None:
    store.create([a_limited_run()])
    store.create([a_limited_run(limits=replace(LIMITS, work_limit=5.0))])
    assert store.limits("run") == LIMITS
    store.create([a_run("plain")])
    store.create([a_limited_run("plain")])
    assert store.limits("plain") is None


def test_what_was_worked_is_written_with_the_commit(store: Store) -> None:
    store.create([a_limited_run()])
    held = claimed(store)
    commit(store, held, entries=[an_entry("a")], run={"summary": "x"}, worked=12.5)
    assert store.load("run").limits == replace(LIMITS, worked=12.5)


def test_a_run_that_continues_has_them_anew(store: Store) -> None:
    store.create([a_limited_run()])
    held = claimed(store)
    ended = {"state": "failed", "finished_at": NOW, "wake_at": None, "lease_expires_at": None, "worker": ""}
    commit(store, held, run=ended, worked=12.5)
    later = NOW + timedelta(days=9)
    again: Any = {"state": "pending", "finished_at": None, "wake_at": later}
    store.change("run", lambda _run, _entries: RunChange(run=again))
    assert store.limits("run") == replace(LIMITS, deadline=later + timedelta(days=1))


def test_they_are_part_of_the_callers_transaction(store: Store) -> None:
    with suppress(ZeroDivisionError), store.transaction():
        store.create([a_limited_run()])
        raise ZeroDivisionError
    assert store.limits("run") is None


# -- tags in each store: what a start, a commit and a change write, and what a lost lease or a refused commit does not


ACME = {"order": "42", "tenant": "acme"}


def tags(store: Store, run_id: str = "run", *, at_start: bool = False) -> dict[str, str]:
    return store.tags([run_id], at_start=at_start).get(run_id, {})


def of(**values: str | None) -> TagChange:
    return TagChange(NOW, values)


def test_a_start_gives_tags(store: Store) -> None:
    store.create([a_new_run("run", tags=ACME), a_new_run("plain"), a_new_run("empty", tags={})])
    assert store.tags(["run", "plain", "empty", "nobody"]) == {"run": ACME}
    assert store.tags(["run", "plain"], at_start=True) == {"run": ACME}
    assert store.tags([]) == {}


def test_a_start_under_an_id_that_is_taken_gives_none(store: Store) -> None:
    store.create([a_new_run("run", tags=ACME)])
    store.create([a_new_run("run", tags={"tenant": "other"}), a_new_run("new", tags={"tenant": "other"})])
    assert store.tags(["run", "new"]) == {"run": ACME, "new": {"tenant": "other"}}
    store.create([a_new_run("twice", tags={"n": "1"}), a_new_run("twice", tags={"n": "2"})])
    assert tags(store, "twice") == {"n": "1"}


def test_a_keyed_start_gives_tags(store: Store) -> None:
    store.start_keyed(a_new_run("run", tags=ACME), "k")
    store.start_keyed(a_new_run("other", tags={"tenant": "other"}), "k")
    assert store.tags(["run", "other"]) == {"run": ACME}


def test_a_commit_sets_tags_and_keeps_those_of_the_start(store: Store) -> None:
    store.create([a_new_run("run", tags=ACME)])
    run = claimed(store)
    commit(store, run, entries=[an_entry("tag~0")], tags=[of(stage="new", tenant="other")])
    assert tags(store) == {"order": "42", "stage": "new", "tenant": "other"}
    assert tags(store, at_start=True) == ACME
    commit(store, run, tags=[of(stage="paid")])
    assert tags(store)["stage"] == "paid"
    assert [entry.location for entry in store.history("run")] == ["tag~0"]


def test_a_commit_under_an_old_fence_sets_none(store: Store) -> None:
    store.create([a_new_run("run", tags=ACME)])
    old = claimed(store)
    claimed(store, now=at(3600))
    with pytest.raises(LeaseLost):
        commit(store, old, entries=[an_entry("tag~0")], tags=[of(stage="new")])
    assert tags(store) == ACME
    assert store.history("run") == []


def test_a_change_takes_tags_back(store: Store) -> None:
    store.create([a_new_run("run", tags=ACME)])

    def decide(run: RunRecord, _entries: object) -> RunChange:
        return RunChange(run={"wake_at": run.wake_at}, tags=of(order=None, tenant="other", stage="new"))

    store.change("run", decide)
    assert tags(store) == {"stage": "new", "tenant": "other"}


def test_a_repeated_commit_starts_a_child_with_its_tags_once(store: Store) -> None:
    store.create([a_new_run("parent")])
    run = claimed(store, "parent")
    for _ in range(2):
        start_children(store, run, a_child("child", tags={"part": "1"}))
    assert tags(store, "child") == {"part": "1"}


def test_a_transaction_that_is_undone_leaves_none(store: Store) -> None:
    store.create([a_new_run("before", tags=ACME)])
    with suppress(ZeroDivisionError), store.transaction():
        store.create([a_new_run("run", tags=ACME)])
        assert tags(store) == ACME
        store.import_history("before", entries=(), attempts=(), messages=(), tags=of(tenant="other"))
        raise ZeroDivisionError
    assert store.tags(["run", "before"]) == {"before": ACME}
    assert the(store, "before") is not None


def test_the_records_of_rows_are_attributes_of_their_classes_too() -> None:
    found = [getattr(model, "record", None) for model in apps.get_app_config("durable").get_models()]
    assert sum(isinstance(each, Recorded) for each in found) > 5
    assert RunLimit.record is vars(RunLimit)["record"]


# -- statuses of runs: the newest wins, a late worker writes none, a plain run has no row


def said(fence: int, number: int = 1, **parts: Any) -> StatusRecord:
    given: dict[str, Any] = {"run_id": "run", "text": "at work", "done": None, "of": None, "eta": None, "at": NOW}
    return StatusRecord(fence=fence, number=number, **{**given, **parts})


def shown(store: Store) -> Status | None:
    found = store.statuses(["run", "other"]).get("run")
    assert store.get_shown(["run"])["run"][1] == found
    return found


def work(store: Store, fence: int, **given: Any) -> None:
    store.commit(Batch(run_id="run", fence=fence, now=NOW, run={"summary": "works"}, **given))


def test_all_parts_come_back(store: Store) -> None:
    fence = held(store)
    assert shown(store) is None
    record = said(fence, text="page 3", done=3, of=7.5, eta=at(60), at=at(1))
    store.show([record])
    assert shown(store) == Status(text="page 3", done=3, of=7.5, eta=at(60), at=at(1))
    assert isinstance(record.status.done, int)


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 500, ""])
def test_a_text_may_have_any_characters(store: Store, text: str) -> None:
    fence = held(store)
    store.show([said(fence, text=text)])
    found = shown(store)
    assert found is not None
    assert found.text == text


def test_the_newest_wins_whichever_way_it_comes(store: Store) -> None:
    fence = held(store)
    store.show([said(fence, 2, text="second")])
    work(store, fence, status=said(fence, 1, text="first"))
    assert shown(store) == said(fence, 2, text="second").status
    work(store, fence, status=said(fence, 3, text="third"))
    store.show([said(fence, 2, text="second")])
    assert shown(store) == said(fence, 3, text="third").status


def test_a_worker_that_has_lost_the_run_writes_none(store: Store) -> None:
    old = held(store)
    store.show([said(old, 5, text="old")])
    new = again(store)
    store.show([said(old, 6, text="late")])
    assert shown(store) == said(old, 5, text="old").status
    with pytest.raises(LeaseLost):
        work(store, old, status=said(old, 7, text="late"))
    assert shown(store) == said(old, 5, text="old").status
    store.show([said(new, 1, text="new")])
    store.show([said(old, 8, text="late")])
    assert shown(store) == said(new, 1, text="new").status


def test_a_released_run_shows_what_it_has_said_and_nothing_new(store: Store) -> None:
    fence = held(store)
    store.show([said(fence, 1, text="kept")])
    store.release([("run", fence)], NOW)
    store.show([said(fence, 2, text="late"), replace(said(fence), run_id="unknown")])
    assert shown(store) == said(fence, 1, text="kept").status


def test_a_change_may_take_the_status_away(store: Store) -> None:
    fence = held(store)
    store.show([said(fence)])
    store.change("run", lambda run, _: RunChange(run={"change_seq": run.change_seq + 1}))
    assert shown(store) is not None
    store.change("run", lambda run, _: RunChange(run={"change_seq": run.change_seq + 1}, is_status_over=True))
    assert shown(store) is None


def test_a_transaction_that_is_taken_back_takes_the_status_back(store: Store) -> None:
    fence = held(store)
    with suppress(ZeroDivisionError), store.transaction():
        work(store, fence, status=said(fence))
        raise ZeroDivisionError
    assert shown(store) is None


# -- runs in doubt: which are, what their first pass loads, and when it is over


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
    claimed(store, "run", NOW + timedelta(days=1))
    store.put_in_doubt(SINCE, 10)
    with pytest.raises(LeaseLost):
        commit(store, held, entries=[an_entry("a")], changes={DoubtOver: [DoubtOver()]})
    assert doubt(store) == SINCE


def test_a_child_may_begin_in_doubt(store: Store) -> None:
    parent = started(store, "parent")
    child = a_new_run("child", parent_id="parent").in_doubt(SINCE)
    start_children(store, parent, a_child("child")._replace(run=child))
    assert (loaded(store, "child"), the(store, "child").fence) == (SINCE, 1)
