"""Tags in each store: what a start, a commit and a change write, and what a lost lease or a refused commit does not."""

from __future__ import annotations

from datetime import datetime

import pytest

from durable.core.control_flow import LeaseLost
from durable.core.records import RunChange, RunRecord, TagChange
from durable.store import Store
from tests.store.family import a_child, start_children
from tests.store.making import LEASE, NOW, a_new_run, an_entry, at, commit, the

ACME = {"order": "42", "tenant": "acme"}


def tags(store: Store, run_id: str = "run", *, at_start: bool = False) -> dict[str, str]:
    return store.tags([run_id], at_start=at_start).get(run_id, {})


def claimed(store: Store, run_id: str = "run", now: datetime = NOW) -> RunRecord:
    run = store.claim_run(run_id, now=now, lease_until=now + LEASE, worker="w")
    assert run is not None
    return run


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
    start = a_child("child", tags={"part": "1"})
    for _ in range(2):
        start_children(store, run, start)
    assert tags(store, "child") == {"part": "1"}


def test_a_transaction_that_is_undone_leaves_none(store: Store) -> None:
    class Undone(Exception):
        pass

    store.create([a_new_run("before", tags=ACME)])

    def start_and_fail() -> None:
        with store.transaction():
            store.create([a_new_run("run", tags=ACME)])
            assert tags(store) == ACME
            store.import_history("before", entries=(), attempts=(), messages=(), tags=of(tenant="other"))
            raise Undone

    with pytest.raises(Undone):
        start_and_fail()
    assert store.tags(["run", "before"]) == {"before": ACME}
    assert the(store, "before") is not None
