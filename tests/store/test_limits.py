"""Limits of runs: stored with the run, loaded with its history, renewed when it continues."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from durable.core.records import RunChange
from durable.core.time_limits import NewRun, RunLimits
from durable.store import Store
from tests.store.making import NOW, a_run, an_entry, commit, started

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
    held: Any = store.claim_run("run", now=NOW, lease_until=NOW + timedelta(minutes=1), worker="w")
    commit(store, held, entries=[an_entry("a")], run={"summary": "x"}, worked=12.5)
    assert store.load("run").limits == replace(LIMITS, worked=12.5)


def test_a_run_that_continues_has_them_anew(store: Store) -> None:
    store.create([a_limited_run()])
    held: Any = store.claim_run("run", now=NOW, lease_until=NOW + timedelta(minutes=1), worker="w")
    ended = {"state": "failed", "finished_at": NOW, "wake_at": None, "lease_expires_at": None, "worker": ""}
    commit(store, held, run=ended, worked=12.5)
    later = NOW + timedelta(days=9)
    again: Any = {"state": "pending", "finished_at": None, "wake_at": later}
    store.change("run", lambda _run, _entries: RunChange(run=again))
    assert store.limits("run") == replace(LIMITS, deadline=later + timedelta(days=1))


def test_they_are_part_of_the_callers_transaction(store: Store) -> None:
    class Undone(Exception):
        pass

    try:
        with store.transaction():
            store.create([a_limited_run()])
            raise Undone
    except Undone:
        pass
    assert store.limits("run") is None
