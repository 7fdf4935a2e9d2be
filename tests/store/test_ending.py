"""One way to end: whatever ends a run, its parent is woken and its open children are cancelled, in the same commit."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.records import (
    ENDED,
    OutgoingMessage,
    Request,
    RunChange,
    RunRecord,
    RunState,
    WhenParentEnds,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import TRANSITIONS, starts_of
from durable.store import Store
from durable.store.base import ChildIdTaken
from durable.store.postgres import PostgresStore
from durable.store.postgres.sql_functions import PATCHED
from durable.store.rules import row_rules
from durable.store.sqlite import SQLiteStore
from tests.store.children import a_child, finish, start_children, waiting
from tests.store.making import LEASE, NOW, a_run, at, changed, claimed, commit, park, started, the
from tests.support.transitions import CALLS, columns_of, ends, odd_run, patched

DatabaseStores = SQLiteStore | PostgresStore
ENDS = [name for name in TRANSITIONS if ends(name)]


def brought_to(store: Store, run_id: str, state: str, **columns: Any) -> RunRecord:
    """The run in this state, as a worker or nobody has it."""
    patch: dict[str, Any] = {"state": state, **columns}
    if state in (RunState.RUNNING, RunState.ROLLING_BACK):
        patch |= {"lease_expires_at": NOW + LEASE, "worker": "w", "fence": 1}
    return store.change(run_id, lambda _run, _entries: RunChange(run=patch))  # type: ignore[arg-type]  # a patch


@pytest.mark.parametrize("how", ["commit", "change"])
@pytest.mark.parametrize("name", ENDS)
def test_each_transition_that_ends_a_run(store: Store, name: str, how: str) -> None:
    for number, state in enumerate(starts_of(name)):
        parent, child, grandchild = (f"{each}-{number}" for each in ("parent", "child", "grandchild"))
        waiting(store, child, parent=parent)
        held = claimed(store, child)
        start_children(store, held, a_child(grandchild, child))
        run = brought_to(store, child, state)
        assert the(store, parent).wake_at is None
        if how == "commit":
            answer = commit(store, run, run=CALLS[name](run), parent_id=parent)
            assert answer.queues_to_notify == {"q"}
        else:
            changed(store, child, CALLS[name])
        ended = the(store, child)
        assert ended.state in ENDED
        assert the(store, parent).wake_at == ended.finished_at
        assert the(store, grandchild).state == RunState.CANCELLED


@pytest.mark.parametrize("name", sorted({*TRANSITIONS} - {*ENDS} - {"started", "moved", "sent_to", "child_ended"}))
def test_no_other_transition(store: Store, name: str) -> None:
    for number, state in enumerate(each for each in starts_of(name) if each not in ENDED):
        parent, child, grandchild = (f"{each}-{number}" for each in ("parent", "child", "grandchild"))
        waiting(store, child, parent=parent)
        held = claimed(store, child)
        start_children(store, held, a_child(grandchild, child))
        brought_to(store, child, state)
        changed(store, child, CALLS[name])
        assert the(store, parent).wake_at is None
        assert the(store, grandchild).state == RunState.PENDING


# -- the parent


def test_a_parent_that_waits_for_another_child_sleeps_on(store: Store) -> None:
    waiting(store, "a", starts=(a_child("b"), a_child("ab")))
    assert finish(store, "b").queues_to_notify == frozenset()
    finish(store, "ab")
    assert the(store, "parent").wake_at is None
    assert finish(store, "a").queues_to_notify == {"q"}


def test_a_parent_that_waits_for_two_children_is_due_since_the_first_end(store: Store) -> None:
    waiting(store, "a", "b")
    finish(store, "b", at(20))
    finish(store, "a", at(10))
    assert the(store, "parent").wake_at == at(10)


@pytest.mark.parametrize("waiting_for", ["/~a/", "*"])
@pytest.mark.parametrize(("deadline", "wake_at"), [(None, at(10)), (at(5), at(5)), (at(20), at(10))])
def test_a_parent_is_due_since_the_end_unless_it_was_before(
    store: Store, waiting_for: str, deadline: datetime | None, wake_at: datetime
) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a"))
    park(store, held, waiting_for=waiting_for, wake_at=deadline, batch={"awaited_children": ["a"]})
    finish(store, "a", at(10))
    assert the(store, "parent").wake_at == wake_at


def test_a_child_with_many_children_of_its_own_wakes_its_parent(store: Store) -> None:
    waiting(store, "m")
    child = claimed(store, "m")
    own = [f"{letter}{number}" for letter in "az" for number in range(5)]
    start_children(store, child, *(a_child(each, "m", child_position=at) for at, each in enumerate(own)))
    park(store, child)
    assert finish(store, "m").queues_to_notify == {"q"}
    assert the(store, "parent").wake_at == the(store, "m").finished_at


@pytest.mark.parametrize("waiting_for", ["/~a/", "*"])
def test_a_parent_does_not_park_for_a_child_that_has_ended(store: Store, waiting_for: str) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a"), a_child("b"))
    finish(store, "a")
    answer = park(store, held, waiting_for=waiting_for, batch={"awaited_children": ["b", "a"]})
    assert answer.queues_to_notify == {"q"}
    assert the(store, "parent").wake_at == NOW


def test_a_parent_parks_for_an_open_child_although_others_have_ended(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a"), a_child("b"))
    finish(store, "a")
    park(store, held, waiting_for="/~b/", batch={"awaited_children": ["b"]})
    assert the(store, "parent").wake_at is None


def test_a_paused_parent_stays_paused(store: Store) -> None:
    waiting(store, "a")
    changed(store, "parent", transitions.paused_at_once, summary="")
    assert finish(store, "a").queues_to_notify == frozenset()
    assert the(store, "parent").state == RunState.PAUSED
    assert store.due_queues(at(9)) == []


def test_a_parent_that_has_ended_is_not_woken(store: Store) -> None:
    waiting(store, starts=(a_child("a", child_when_parent_ends=WhenParentEnds.LEAVE),))
    finish(store, "parent")
    finish(store, "a")
    assert the(store, "parent").wake_at is None


def test_a_run_that_a_step_has_started_wakes_nobody(store: Store) -> None:
    held = started(store, "parent")
    store.create([a_run("a", parent_id="parent")])
    park(store, held, waiting_for="/~a/")
    finish(store, "a")
    assert the(store, "parent").wake_at is None


def test_the_deletion_of_an_open_child_wakes_its_parent(postgres_store: PostgresStore) -> None:
    waiting(postgres_store, "a")
    with connections[postgres_store.alias].cursor() as cursor:
        cursor.execute("DELETE FROM durable_run WHERE id = 'a'")
    assert the(postgres_store, "parent").wake_at is not None


# -- the start


def test_children_are_started_with_the_commit(store: Store) -> None:
    held = started(store, "parent")
    starts = [
        a_child("a", queue="other", child_location="x/y", child_generation=2, child_position=7),
        a_child("b", wake_at=at(60), child_when_parent_ends=WhenParentEnds.LEAVE, child_group="g"),
    ]
    assert start_children(store, held, *starts).queues_to_notify == {"other"}
    for run, child in starts:
        assert the(store, run.id) == run
        assert store.children([run.id, "parent", "none"]) == {run.id: child}


def test_the_same_commit_again_starts_nothing_new(store: Store) -> None:
    held = started(store, "parent")
    start_children(store, held, a_child("a"))
    finish(store, "a")
    start_children(store, held, a_child("a"))
    assert the(store, "a").state == RunState.COMPLETED


def test_a_parent_that_has_lost_its_lease_starts_nothing(store: Store) -> None:
    held = started(store, "parent")
    changed(store, "parent", transitions.fence_raised)
    with pytest.raises(LeaseLost):
        start_children(store, held, a_child("a"))
    assert store.get("a") is None


def test_an_id_that_another_run_has(store: Store) -> None:
    held = started(store, "parent")
    store.create([a_run("a")])
    with pytest.raises(ChildIdTaken) as caught, store.transaction():
        commit(store, held, starts=[a_child("b"), a_child("a")], run={"summary": "written"})
    assert caught.value.run_id == "a"
    assert store.get("b") is None
    assert the(store, "parent").summary == ""


def test_a_start_and_a_message_notify_all_queues(store: Store) -> None:
    held = started(store, "parent")
    waiting(store, "x", parent="other")
    park(store, started(store, "third", queue="third"), waiting_for="/mail/")
    message = OutgoingMessage(id="m", to="third", queue="mail", body="1", sent_at=NOW)
    answer = commit(store, held, starts=[a_child("a", queue="own")], sends=[message])
    assert answer.queues_to_notify == {"own", "third"}


# -- the children


@pytest.mark.parametrize("state", starts_of("cancel_handed_over"))
def test_a_child_whose_workflow_has_an_on_end_is_left_to_a_worker(store: Store, state: str) -> None:
    store.declare_ends(["with.end"])
    held = started(store, "parent")
    start_children(store, held, a_child("child", workflow="with.end", queue="other"), a_child("plain"))
    child = store.change("child", lambda _run, _: RunChange(run=_in_state(state)))
    answer = finish(store, "parent")
    reason = 'its parent "parent" has ended (completed)'
    summary = Summary(SummaryKind.CANCELLING, reason=reason)
    now = the(store, "parent").finished_at
    assert now is not None
    wanted = transitions.cancel_handed_over(child, now=now, reason=reason, summary=summary.stored)
    after = the(store, "child")
    assert columns_of(replace(after, summary=Summary.load(after.summary).stored)) == columns_of(patched(child, wanted))
    assert the(store, "plain").state == RunState.CANCELLED
    assert "other" in store.due_queues(now)
    assert answer.queues_to_notify <= {"other"}
    assert store.children_left(["parent"], 10).get("parent", 0) == 0


def _in_state(state: str) -> Any:
    return {"state": state, "wake_at": None} if state == RunState.PAUSED else {"state": state, "wake_at": at(900)}


def test_the_declarations_of_ends(store: Store) -> None:
    store.declare_ends(["a", "b"])
    store.declare_ends(["b", "c"], ["a"])
    assert [store.calls_at_end(each) for each in "abcd"] == [False, True, True, False]


def test_children_that_are_left_go_on(store: Store) -> None:
    waiting(store, "a", starts=(a_child("b", child_when_parent_ends=WhenParentEnds.LEAVE),))
    finish(store, "parent")
    assert the(store, "a").state == RunState.CANCELLED
    assert the(store, "b").state == RunState.PENDING


WHY = 'its parent "parent" has ended (completed)'


def an_odd_child(store: Store, state: str, **columns: Any) -> RunRecord:
    """A child with an odd value in each column that a commit writes, and that is not ending."""
    waiting(store, "a")
    odd = odd_run(state, state_after_rollback="", pending_request=Request.PAUSE, **columns)
    patch: Any = {name: value for name, value in columns_of(odd).items() if name in PATCHED}
    store.change("a", lambda _run, _entries: RunChange(run=patch))
    before = the(store, "a")
    assert {name: getattr(before, name) for name in patch} == patch
    return before


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.SLEEPING, RunState.RUNNING, RunState.PAUSED])
def test_a_child_that_no_worker_has_is_cancelled_at_once(store: Store, state: str) -> None:
    """A worker that had it has lost its lease."""
    before = an_odd_child(store, state)
    finish(store, "parent", at(1))
    summary = Summary(SummaryKind.PARENT_ENDED, parent="parent", state="completed")
    expected = patched(before, transitions.cancelled_at_once(before, now=at(1), reason=WHY, summary=summary))
    assert columns_of(the(store, "a")) == columns_of(expected)
    assert Summary.load(expected.summary).kind is SummaryKind.PARENT_ENDED


def test_a_child_that_a_worker_has_is_asked_to_end(store: Store) -> None:
    before = an_odd_child(store, RunState.RUNNING, lease_expires_at=NOW + LEASE)
    finish(store, "parent", at(1))
    expected = patched(before, transitions.cancel_requested(before, request=Request.CANCEL, reason=WHY))
    assert columns_of(the(store, "a")) == columns_of(expected)


@pytest.mark.parametrize(
    "columns",
    [
        {"state": RunState.ROLLING_BACK, "state_after_rollback": "failed"},
        {"state": RunState.PAUSED, "state_after_rollback": "failed"},
        {"pending_request": "cancel_rollback"},
        {"pending_request": "cancel"},
    ],
)
def test_a_child_that_is_ending_ends_as_it_would(store: Store, columns: dict[str, Any]) -> None:
    waiting(store, "a")
    store.change("a", lambda _run, _: RunChange(run=columns))  # type: ignore[arg-type]  # a patch
    before = the(store, "a")
    finish(store, "parent")
    assert the(store, "a") == before
    assert store.cascade("", NOW) is None


def test_children_are_cancelled_down_to_the_last_generation(store: Store) -> None:
    above = "parent"
    started(store, above)
    for number in range(6):
        held = claimed(store, above, at(number * 60 + 60))
        start_children(store, held, a_child(f"child-{number}", above))
        above = f"child-{number}"
    changed(store, "parent", transitions.cancelled_at_once, now=at(999), reason="", summary="")
    assert {the(store, f"child-{number}").state for number in range(6)} == {RunState.CANCELLED}


@pytest.fixture
def most(store: Store, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most runs that one commit cancels. PostgreSQL's number is in its functions."""
    most = row_rules.CASCADED_AT_ONCE if isinstance(store, PostgresStore) else 12
    monkeypatch.setattr(row_rules, "CASCADED_AT_ONCE", most)
    return most


def test_more_children_than_one_commit_cancels(store: Store, most: int) -> None:
    number = 2 * most + 10
    held = started(store, "parent")
    start_children(store, held, *(a_child(f"c{each}", child_position=each) for each in range(number)))
    finish(store, "parent")
    assert _cancelled(store, number) == most
    assert store.cascade("", at(1)) == ("parent", most)
    assert store.cascade("parent", at(1)) is None
    assert store.cascade("", at(1)) == ("parent", 10)
    assert store.cascade("", at(1)) is None
    assert _cancelled(store, number) == number


def test_grandchildren_count_too(store: Store, most: int) -> None:
    wide = most
    held = started(store, "parent")
    start_children(store, held, a_child("child"))
    child = claimed(store, "child")
    start_children(store, child, *(a_child(f"c{each}", "child", child_position=each) for each in range(wide)))
    park(store, child)
    finish(store, "parent")
    assert _cancelled(store, wide) == wide - 1
    assert store.cascade("", at(1)) == ("child", 1)
    assert store.cascade("", at(1)) is None


def _cancelled(store: Store, number: int) -> int:
    rows = store.get_many([f"c{each}" for each in range(number)])
    return sum(row.state == RunState.CANCELLED for row in rows.values())


def test_a_parent_that_is_reopened_keeps_what_is_left(store: Store, most: int) -> None:
    held = started(store, "parent")
    start_children(store, held, *(a_child(f"c{each}", child_position=each) for each in range(most + 1)))
    patch = CALLS["failed"](held)
    commit(store, held, run=patch)
    changed(store, "parent", CALLS["recovered"])
    assert store.cascade("", NOW) in (("parent", 0), None)
    assert store.cascade("", NOW) is None
    assert _cancelled(store, most + 1) == most


@pytest.mark.parametrize("how", ["commit", "change"])
def test_children_that_a_parent_drops(store: Store, how: str) -> None:
    held = started(store, "parent")
    left = a_child("c", child_when_parent_ends=WhenParentEnds.LEAVE)
    start_children(store, held, a_child("a"), a_child("b"), left, a_child("d"))
    finish(store, "d")
    dropped = ["a", "c", "d", "none"]
    if how == "commit":
        commit(store, held, dropped_children=dropped)
    else:
        store.change("parent", lambda _run, _: RunChange(run={"wake_at": NOW}, dropped_children=dropped))
    states = {each: str(the(store, each).state) for each in "abcd"}
    assert states == {
        "a": "cancelled",
        "b": "pending",
        "c": "pending" if how == "commit" else "cancelled",
        "d": "completed",
    }
    assert the(store, "a").summary == 'cancelled: its parent "parent" has taken its start back'
    assert the(store, "a").request_reason == 'its parent "parent" has taken its start back'


def test_the_sweep_goes_on_with_children_of_an_open_parent(store: Store, most: int) -> None:
    held = started(store, "parent")
    many = [f"c{each}" for each in range(most + 2)]
    start_children(store, held, *(a_child(each) for each in many), a_child("kept"))
    commit(store, held, dropped_children=many)
    assert _cancelled(store, len(many)) == most
    assert store.cascade("", at(1)) == ("parent", 2)
    assert store.cascade("", at(1)) is None
    assert the(store, "kept").state == RunState.PENDING


# -- places, and replays that read


@pytest.mark.parametrize("is_change", [False, True], ids=["commit", "change"])
def test_the_open_children_below_a_place_are_dropped(store: Store, is_change: bool) -> None:
    held = started(store, "parent")
    places = {"a": "loop/~0/mail", "b": "Loop/~0/mail", "c": "loop", "d": "loop/~1/inner/mail", "e": "loops/~0/mail"}
    starts = [a_child(each, child_location=place) for each, place in places.items()]
    left = a_child("left", child_location="loop/~2/mail", child_when_parent_ends="leave")
    ended = a_child("ended", child_location="loop/~3/mail")
    start_children(store, held, *starts, left, ended)
    finish(store, "ended")
    assert set(store.open_children_below("parent", ("loop/",))) == {"a", "d", "left"}
    dropped = ["e", "loop/"]
    if is_change:
        store.change("parent", lambda run, _: RunChange(run={"wake_at": at(1)}, dropped_children=dropped))
    else:
        commit(store, held, dropped_children=dropped)
    cancelled = {"a", "d", "e", *(["left"] if is_change else [])}
    assert {each for each in [*places, "left"] if the(store, each).state == RunState.CANCELLED} == cancelled
    assert the(store, "ended").state == RunState.COMPLETED


def test_a_replay_that_may_read_a_child(store: Store) -> None:
    waiting(store, "a")
    finish(store, "a")
    store.create([a_run("reader"), a_run("ended")])
    with store.transaction():
        assert store.note_reader("reader", ["a", "gone"]) == ["a"]
        assert store.note_reader("ended", ["a"]) == ["a"]
    finish(store, "ended")
    assert store.readers_of("a") == ["reader"]
    assert store.readers_of("b") == []
