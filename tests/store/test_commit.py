"""What a commit writes, and that a stale fence writes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError

from durable.core.control_flow import LeaseLost
from durable.core.errors import ErrorInfo
from durable.core.records import (
    Batch,
    EntryRecord,
    EntryStatus,
    MessageState,
    Request,
    RunChange,
    RunState,
)
from durable.store import Store
from tests.store.children import SHAPES, everything
from tests.store.making import (
    NOW,
    a_batch,
    a_full_entry,
    a_message,
    an_attempt,
    an_entry,
    at,
    commit,
    finished,
    sent,
    started,
    the,
)


def by_location(entries: list[EntryRecord]) -> dict[str, EntryRecord]:
    return {entry.location: entry for entry in entries}


@pytest.mark.parametrize("count", [1, 2, 30])
def test_entries_come_back_as_they_were_written(store: Store, count: int) -> None:
    held = started(store)
    entries = [a_full_entry(f"scope/step {n}", f"text {n}") for n in range(count)]
    commit(store, held, entries=entries)
    assert by_location(store.load("run")) == by_location(entries)
    assert store.history("run") == sorted(entries, key=lambda entry: entry.ordinal)


def test_a_minimal_entry_comes_back_with_nothing_in_it(store: Store) -> None:
    held = started(store)
    entry = an_entry()
    commit(store, held, entries=[entry])
    assert store.load("run") == [entry]


@pytest.mark.parametrize("count", [1, 3])
def test_an_entry_that_is_there_is_replaced(store: Store, count: int) -> None:
    held = started(store)
    first = [a_full_entry(f"{n}", "old") for n in range(count)]
    commit(store, held, entries=first)
    second = [an_entry(f"{n}", status=EntryStatus.COMPLETED, output="new", data={"b": 2}) for n in range(count)]
    commit(store, held, entries=second)
    assert by_location(store.load("run")) == by_location(second)


def test_of_an_entry_given_twice_the_last_counts(store: Store) -> None:
    held = started(store)
    first, second = an_entry("a", output="1"), an_entry("a", output="2")
    commit(store, held, entries=[first, an_entry("b"), second])
    assert by_location(store.load("run"))["a"] == second


def test_later_changes_of_a_written_entry_stay_outside(store: Store) -> None:
    held = started(store)
    entry = an_entry(data={"list": [1]})
    commit(store, held, entries=[entry])
    entry.data["list"].append(2)
    entry.status = EntryStatus.FAILED
    store.load("run")[0].data["list"].append(3)
    [kept] = store.load("run")
    assert kept.data == {"list": [1]}
    assert kept.status == EntryStatus.PENDING


def test_locations_differ_in_case_and_entries_in_their_run(store: Store) -> None:
    one, two = started(store, "1"), started(store, "2")
    commit(store, one, entries=[an_entry("a"), an_entry("A")])
    commit(store, two, entries=[an_entry("a", output="other")])
    assert sorted(by_location(store.load("1"))) == ["A", "a"]
    assert [entry.output for entry in store.load("2")] == ["other"]


def test_deleted_entries_go_with_their_attempts_and_no_others(store: Store) -> None:
    held, other = started(store), started(store, "other")
    for run in (held, other):
        commit(
            store,
            run,
            entries=[an_entry("a"), an_entry("a/b"), an_entry("c")],
            attempts=[an_attempt("a"), an_attempt("c")],
        )
    commit(store, held, deleted=["a", "missing"])
    assert sorted(by_location(store.load("run"))) == ["a/b", "c"]
    assert [attempt.location for attempt in store.attempts("run")] == ["c"]
    assert len(store.load("other")) == 3
    assert len(store.attempts("other")) == 2


def test_an_entry_deleted_and_written_in_one_commit_is_the_new_one(store: Store) -> None:
    held = started(store)
    commit(store, held, entries=[a_full_entry("a", "old"), an_entry("b")], attempts=[an_attempt("a", 1)])
    new = an_entry("a", output="new")
    commit(store, held, entries=[new], deleted=["a", "b"], attempts=[an_attempt("a", 2)])
    assert store.load("run") == [new]
    assert [attempt.number for attempt in store.attempts("run")] == [2]


def test_failed_attempts_come_oldest_first(store: Store) -> None:
    held = started(store)
    attempts = [an_attempt("a", n, f"text {n}") for n in (1, 2, 3)]
    commit(store, held, attempts=attempts[:2])
    commit(store, held, attempts=attempts[2:])
    assert store.attempts("run") == attempts


def test_a_message_is_received_in_the_commit_that_records_it(store: Store) -> None:
    held = started(store)
    message = sent(store, a_message())
    commit(store, held, entries=[an_entry("wait")], received=[(message.id, "wait")])
    assert store.inbox("run", [], 9, None) == []
    assert store.message(message.id) == replace(message, state=MessageState.RECEIVED, received_by="wait")


@pytest.mark.parametrize("is_one_commit", [False, True])
def test_received_messages_are_completed_with_a_response_or_none_or_refused_with_a_reason(
    store: Store, is_one_commit: bool
) -> None:
    held = started(store)
    one, two, three = (sent(store, a_message()) for _ in range(3))
    received = [(each.id, "wait") for each in (one, two, three)]
    completed = [(one.id, '"yes"'), (two.id, None), (three.id, '"no"', True)]
    if not is_one_commit:
        commit(store, held, received=received)
    commit(store, held, received=received if is_one_commit else [], completed=completed)
    done: dict[str, Any] = {"received_by": "wait", "state": MessageState.COMPLETED}
    assert store.messages("run") == [
        replace(one, **done, response='"yes"'),
        replace(two, **done, response=None),
        replace(three, received_by="wait", state=MessageState.REFUSED, response='"no"'),
    ]


def test_a_run_consumes_its_own_messages_only(store: Store) -> None:
    held = started(store)
    started(store, "other")
    message = sent(store, a_message("other"))
    commit(store, held, received=[(message.id, "wait"), ("missing", "wait")])
    assert store.message(message.id) == message


def test_the_patch_sets_its_columns_and_leaves_the_others(store: Store) -> None:
    held = started(store)
    commit(
        store,
        held,
        run={
            "state": RunState.FAILED,
            "output": None,
            "error": ErrorInfo("E", "m", "t"),
            "origins": ["a"],
            "generations": {"a": 1},
            "wake_at": None,
            "summary": "s",
            "lease_expires_at": None,
            "crashes": 0,
            "finished_at": at(5),
            "state_after_rollback": "",
        },
    )
    assert the(store) == replace(
        held,
        state=RunState.FAILED,
        error=ErrorInfo("E", "m", "t"),
        origins=["a"],
        generations={"a": 1},
        wake_at=None,
        summary="s",
        lease_expires_at=None,
        finished_at=at(5),
    )


def test_a_commit_without_a_patch_leaves_the_runs_row(store: Store) -> None:
    held = started(store)
    commit(store, held, entries=[an_entry()])
    assert the(store) == held


def test_an_empty_commit_still_checks_the_fence(store: Store) -> None:
    held = started(store)
    assert commit(store, held).request == Request.NONE
    with pytest.raises(LeaseLost):
        commit(store, held, fence=held.fence + 1)


def test_a_commit_tells_of_the_pending_request(store: Store) -> None:
    held = started(store)
    store.change("run", lambda run, entries: RunChange(run={"pending_request": Request.PAUSE}))
    assert commit(store, held, entries=[an_entry()]).request == Request.PAUSE
    assert commit(store, held, run={"summary": "x"}).request == Request.PAUSE
    assert commit(store, held, run={"pending_request": Request.NONE}).request == Request.NONE


@pytest.mark.parametrize("fence", [-1, 1])
def test_a_stale_fence_writes_no_part_of_a_commit(store: Store, fence: int) -> None:
    held = started(store)
    started(store, "other", waiting_for="*")
    commit(store, held, entries=[an_entry("old"), an_entry("gone")], attempts=[an_attempt("gone")])
    one, two = sent(store, a_message()), sent(store, a_message())
    commit(store, held, received=[(two.id, "old")])
    before = everything(store)
    batch = a_batch(
        held,
        fence=held.fence + fence,
        entries=[an_entry("new"), an_entry("old", output="changed")],
        deleted=["gone"],
        attempts=[an_attempt("old")],
        received=[(one.id, "new")],
        completed=[(two.id, "1")],
        sends=[a_message("other"), a_message("run")],
        run={"state": RunState.SLEEPING, "wake_at": None, "lease_expires_at": None},
        park_change_seq=held.change_seq,
    )
    with pytest.raises(LeaseLost):
        store.commit(batch)
    assert everything(store) == before


@pytest.mark.parametrize("fence", [-1, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_a_commit_checks_the_fence(store: Store, shape: str, fence: int) -> None:
    held = started(store)
    started(store, "other")
    commit(store, held, entries=[an_entry("old")])
    parts = SHAPES[shape](held)
    before = everything(store)
    with pytest.raises(LeaseLost):
        commit(store, held, fence=held.fence + fence, **parts)
    assert (everything(store), store.get("child")) == (before, None)
    commit(store, held, **parts)
    assert everything(store) != before


def test_a_commit_for_a_run_that_is_gone_is_refused(store: Store) -> None:
    with pytest.raises(LeaseLost):
        store.commit(Batch(run_id="none", fence=0, now=NOW, entries=[an_entry()]))


def test_every_part_of_one_commit_is_written(store: Store) -> None:
    held = started(store)
    started(store, "other")
    commit(store, held, entries=[an_entry("gone")])
    message = sent(store, a_message())
    commit(
        store,
        held,
        entries=[an_entry("a"), an_entry("b")],
        deleted=["gone"],
        attempts=[an_attempt("a")],
        received=[(message.id, "a")],
        completed=[(message.id, "1")],
        sends=[a_message("other"), a_message("run")],
        run={"summary": "s"},
    )
    assert sorted(by_location(store.load("run"))) == ["a", "b"]
    assert len(store.attempts("run")) == 1
    assert [m.state for m in store.messages("run")] == [MessageState.COMPLETED, MessageState.PENDING]
    assert len(store.messages("other")) == 1
    assert the(store).summary == "s"


@pytest.mark.parametrize(
    "patch",
    [
        {"state": "dreaming"},
        {"pending_request": "dance"},
        {"state_after_rollback": "running"},
        {"crashes": -1},
        {"state": RunState.COMPLETED, "finished_at": NOW, "wake_at": None},
        {"state": RunState.COMPLETED, "finished_at": NOW, "lease_expires_at": None},
        {"state": RunState.COMPLETED, "wake_at": None, "lease_expires_at": None},
        {"finished_at": NOW},
    ],
)
def test_a_row_that_breaks_an_invariant_is_refused_and_nothing_is_written(
    store: Store, patch: dict[str, object]
) -> None:
    held = started(store)
    with pytest.raises((ValueError, IntegrityError)), store.transaction():
        commit(store, held, entries=[an_entry()], run=patch)
    assert the(store) == held
    assert store.load("run") == []


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
def test_a_run_ends_and_may_be_recovered(store: Store, state: RunState) -> None:
    finished(store, started(store), state)
    run = store.change(
        "run", lambda run, entries: RunChange(run={"state": RunState.PENDING, "finished_at": None, "wake_at": NOW})
    )
    assert run == the(store)
    assert store.claim_run("run", now=NOW, lease_until=at(30), worker="w") is not None
