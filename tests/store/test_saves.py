"""What steps save: the latest stays, and a late worker writes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from durable.core.records import RunChange, RunRecord, SavedDetails
from durable.store import Store
from tests.store.making import HOSTILE, NOW, a_run, an_entry, commit, started


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
    until = NOW + timedelta(days=1)
    taken = store.claim_run("run", now=until, lease_until=until + timedelta(minutes=1), worker="other")
    assert taken is not None
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
