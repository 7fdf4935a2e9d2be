"""Verbs from outside: decided under the run's lock, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from durable.core.control_flow import LeaseLost
from durable.core.errors import InvalidTransitionError, RunNotFoundError
from durable.core.records import EntryRecord, MessageState, RunChange, RunRecord, RunState
from durable.store import Store
from tests.store.making import NOW, a_message, a_run, an_attempt, an_entry, at, commit, park, sent, started, the

Entries = Callable[[], list[EntryRecord]]


def test_a_change_is_decided_by_the_row_and_its_entries(store: Store) -> None:
    held = started(store)
    written = [an_entry("a"), an_entry("b")]
    commit(store, held, entries=written)
    seen: list[object] = []

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        seen.extend([run, entries()])
        return RunChange(run={"summary": "changed"})

    changed = store.change("run", decide)
    assert seen == [held, written]
    assert changed == the(store) == replace(held, summary="changed", change_seq=held.change_seq + 1)


def test_a_change_writes_entries_deletes_them_and_returns_messages(store: Store) -> None:
    held = started(store)
    one, two, three = (sent(store, a_message()) for _ in range(3))
    commit(
        store,
        held,
        entries=[an_entry("a"), an_entry("b"), an_entry("w")],
        attempts=[an_attempt("b")],
        received=[(one.id, "w"), (two.id, "w2"), (three.id, "w")],
        completed=[(one.id, "1")],
    )
    new = an_entry("a", attempts=2)

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        return RunChange(run={}, entries=[new], deleted=["b", "w"], unreceive=["w"])

    store.change("run", decide)
    assert store.load("run") == [new]
    assert store.attempts("run") == []
    assert store.inbox("run", [], 9, None) == [one, three]
    assert [m.state for m in store.messages("run")] == [
        MessageState.PENDING,
        MessageState.RECEIVED,
        MessageState.PENDING,
    ]


def test_what_decide_raises_is_raised_and_nothing_is_changed(store: Store) -> None:
    held = started(store)

    def decide(run: RunRecord, entries: Entries) -> RunChange:
        run.state = RunState.FAILED
        raise InvalidTransitionError(run.state, ["sleeping"])

    with pytest.raises(InvalidTransitionError):
        store.change("run", decide)
    assert the(store) == held


def test_a_run_that_is_not_there_cannot_be_changed(store: Store) -> None:
    with pytest.raises(RunNotFoundError):
        store.change("none", lambda run, entries: RunChange(run={}))


def test_a_raised_fence_takes_the_run_away_from_its_worker(store: Store) -> None:
    held = started(store)
    changed = store.change(
        "run", lambda run, entries: RunChange(run={"lease_expires_at": None, "fence": run.fence + 1})
    )
    assert changed.fence == the(store).fence == held.fence + 1
    assert store.renew([("run", held.fence)], at(99)) == ({}, frozenset())
    with pytest.raises(LeaseLost):
        commit(store, held, entries=[an_entry()])


def test_a_change_signals_a_pass_that_is_about_to_park(store: Store) -> None:
    held = started(store)
    store.change("run", lambda run, entries: RunChange(run={"pending_request": "pause"}))
    park(store, held, wake_at=at(60))
    assert the(store).wake_at == NOW


def test_a_change_may_set_the_signal_itself(store: Store) -> None:
    store.create([a_run(change_seq=3)])
    assert store.change("run", lambda run, entries: RunChange(run={"change_seq": 3})).change_seq == 3
    assert the(store).change_seq == 3
