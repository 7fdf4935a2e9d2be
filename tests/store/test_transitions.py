"""What each store writes for a transition, column by column, is what `durable.core.transitions` says.

The rows have an odd value in every column. So a column that a transition sets or resets, and that a statement of a
store forgets, differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any, cast

import pytest

from durable.core import transitions
from durable.core.limits.ranks import Ranking
from durable.core.records import Batch, OutgoingMessage, RunChange, RunPatch, RunRecord, RunState
from durable.core.transitions import TRANSITIONS, starts_of
from durable.models import Run
from durable.store import Store
from durable.store.postgres import sql_functions
from tests.store.making import (
    a_batch,
    a_new_run,
    a_run,
    the,
)
from tests.support.transitions import CALLS, NOW, PAUSE, at, columns_of, odd_run, patched

#: By writer, the transitions that it writes.
VERBS = [
    *(each for each in list(TRANSITIONS)[1 : list(TRANSITIONS).index("sent_to")] if each != "moved"),
    *("fence_raised", "given_up"),
]
COMMITS = [each for each in list(TRANSITIONS)[list(TRANSITIONS).index("progressed") :] if each != "pause_dropped"]
HELD = (RunState.RUNNING, RunState.ROLLING_BACK)
REFUSED = [state for state in RunState if state not in TRANSITIONS["claimed"]]


def planted(store: Store, *states: str, **columns: Any) -> list[RunRecord]:
    """A row for each of the states, whose name is the run's id, with odd values."""
    runs = [odd_run(state, id=str(state), **columns) for state in states]
    store.create([a_run("parent", queue="other", wake_at=None), a_run("original", queue="other", wake_at=None), *runs])
    assert_rows(store, runs)
    return runs


def assert_rows(store: Store, expected: list[RunRecord]) -> None:
    for run in expected:
        assert columns_of(the(store, run.id)) == columns_of(run)


def test_each_column_of_a_run_is_one_of_a_record_or_of_its_rank() -> None:
    """A column that no `RunRecord` has is compared with no transition: `store.tables.ranks` and claims write ranks."""
    of_rank = {"head_start", "start_tag"}
    columns = {each.attname for each in Run._meta.concrete_fields}
    assert columns == {each.name for each in fields(RunRecord)} | of_rank


def test_each_transition_has_a_writer_that_is_tried_here() -> None:
    others = {
        "started",
        "moved",
        "sent_to",
        "child_ended",  # in `test_ending`
        "claimed",
        "renewed",
        "released",
        "deferred",
        "pause_dropped",
    }
    assert {*VERBS, *COMMITS, *others} == set(TRANSITIONS)


# -- from outside


@pytest.mark.parametrize("wake_at", [at(60), NOW])
def test_a_start(store: Store, wake_at: datetime) -> None:
    store.create([a_run("parent", wake_at=None), a_run("original", wake_at=None)])
    identity: dict[str, Any] = {
        "workflow": "w",
        "queue": "odd",
        "input": '"in"',
        "parent_id": "parent",
        "replay_of_id": "original",
    }
    one, two, three = (
        RunRecord(id=each, created_at=at(-9), **identity, **transitions.started(wake_at)) for each in ("1", "2", "3")
    )
    store.create([one])
    store.create([two, three])
    for run in (one, two, three):
        assert columns_of(the(store, run.id)) == columns_of(run)


@pytest.mark.parametrize("state", starts_of("moved"))
def test_a_move(store: Store, state: RunState) -> None:
    store.start_keyed(a_run(str(state)), "k")
    before = store.change(str(state), lambda run, _entries: RunChange(run={"state": state, "summary": "odd"}))
    moved = store.move(before, now=NOW, wake_at=at(60), input='{"args":[1],"kwargs":{}}')
    expected = patched(before, CALLS["moved"](before))
    assert columns_of(moved) == columns_of(expected)
    assert_rows(store, [expected])
    assert expected.state == TRANSITIONS["moved"][state]


@pytest.mark.parametrize("name", VERBS)
def test_a_change(store: Store, name: str) -> None:
    for run in planted(store, *starts_of(name)):
        changed = store.change(run.id, lambda row, _entries: RunChange(run=CALLS[name](row)))
        expected = patched(run, CALLS[name](run))
        assert columns_of(changed) == columns_of(expected)
        assert_rows(store, [expected])
        assert expected.state == TRANSITIONS[name][RunState(run.state)]


@pytest.mark.parametrize("queue", ["odd", "another"])
@pytest.mark.parametrize("sent_at", [at(-700), at(-100)])
def test_a_send(store: Store, sent_at: datetime, queue: str) -> None:
    runs = planted(store, *RunState)
    store.send([message(f"a {run.id}", run.id, queue, sent_at) for run in runs])
    awaited_since = sent_at if queue == "odd" else None
    patches = [transitions.sent_to(run, count=1, awaited_since=awaited_since) for run in runs]
    sent = [patched(run, patch) for run, patch in zip(runs, patches, strict=True)]
    assert_rows(store, sent)
    for run in sent:
        store.send([message(f"{each} {run.id}", run.id, queue, sent_at) for each in "bcd"])
        assert_rows(store, [patched(run, transitions.sent_to(run, count=3, awaited_since=awaited_since))])


@pytest.mark.parametrize("queue", ["odd", "another"])
def test_a_send_of_the_run_to_itself(store: Store, queue: str) -> None:
    for run in planted(store, *HELD):
        sends = [message(f"{each} {run.id}", run.id, queue, at(-700)) for each in "ab"]
        store.commit(a_batch(run, sends=sends))
        awaited_since = at(-700) if queue == "odd" else None
        patch = transitions.sent_to(run, count=2, awaited_since=awaited_since, is_noticed=False)
        assert_rows(store, [patched(run, patch)])


def message(message_id: str, to: str, queue: str, sent_at: datetime) -> OutgoingMessage:
    return OutgoingMessage(id=message_id, to=to, queue=queue, body="1", sent_at=sent_at)


# -- claims

Claim = Callable[[Store, RunRecord], list[RunRecord]]


def claim(store: Store, run: RunRecord) -> list[RunRecord]:
    return list(store.claim(queue=run.queue, now=NOW, lease_until=at(30), worker="worker", limit=99))


def claim_by_rank(store: Store, run: RunRecord) -> list[RunRecord]:
    """The claim of a queue with lanes: another run of it, which is not due, has a head start."""
    rank(store, "ranked", run.queue)
    return claim(store, run)


def rank(store: Store, run_id: str, queue: str) -> None:
    """Have a run with a head start in the queue, unless it is there."""
    if store.get(run_id) is None:
        high = Ranking(priority="high", head_start=600)
        store.create([a_new_run(run_id, queue=queue, wake_at=at(86_400), ranking=high)])


def claim_run(store: Store, run: RunRecord) -> list[RunRecord]:
    claimed = store.claim_run(run.id, now=NOW, lease_until=at(30), worker="worker")
    return [] if claimed is None else [claimed]


@pytest.mark.parametrize("columns", [{}, {"lease_expires_at": None}, {"started_at": None}])
@pytest.mark.parametrize("claim", [claim, claim_by_rank, claim_run])
def test_a_claim(store: Store, claim: Claim, columns: dict[str, Any]) -> None:
    allowed = [patched(run, CALLS["claimed"](run)) for run in planted(store, *starts_of("claimed"), **columns)]
    refused = [odd_run(state, id=str(state), queue="odd", **columns) for state in REFUSED]
    store.create(refused)
    claimed = {each.id: each for run in (*allowed, *refused) for each in claim(store, run)}
    assert {name: columns_of(each) for name, each in claimed.items()} == {run.id: columns_of(run) for run in allowed}
    assert {name: each.fence for name, each in claimed.items()} == {run.id: the(store, run.id).fence for run in allowed}
    assert_rows(store, [*allowed, *refused])
    assert {run.id: run.state for run in allowed} == TRANSITIONS["claimed"]


@pytest.mark.parametrize("wake_at", [None, NOW, at(600)])
def test_a_claim_of_a_run_by_its_id_makes_it_due(store: Store, wake_at: datetime | None) -> None:
    for run in planted(store, *starts_of("claimed"), wake_at=wake_at):
        if wake_at != NOW:
            assert claim(store, run) == []
        expected = patched(run, CALLS["claimed"](run))
        assert [columns_of(each) for each in claim_run(store, run)] == [columns_of(expected)]
        assert_rows(store, [expected])
        assert expected.wake_at == NOW


def test_no_claim_of_a_run_that_has_a_worker(store: Store) -> None:
    runs = planted(store, *HELD, lease_expires_at=at(1))
    for run in runs:
        assert claim(store, run) == claim_run(store, run) == []
    assert_rows(store, runs)


@pytest.mark.parametrize("lease_expires_at", [at(-1), at(1)])
def test_a_renewal(store: Store, lease_expires_at: datetime) -> None:
    runs = planted(store, *HELD, lease_expires_at=lease_expires_at)
    kept = {run.id: run.pending_request for run in runs}
    assert store.renew([(run.id, run.fence) for run in runs], at(60)) == (kept, frozenset())
    assert_rows(store, [patched(run, CALLS["renewed"](run)) for run in runs])


@pytest.mark.parametrize("wake_at", [at(-300), None, at(300)])
def test_a_release(store: Store, wake_at: datetime | None) -> None:
    runs = planted(store, *HELD, wake_at=wake_at)
    store.release([(run.id, run.fence) for run in runs], NOW)
    expected = [patched(run, CALLS["released"](run)) for run in runs]
    assert_rows(store, expected)
    assert {run.id: run.state for run in expected} == TRANSITIONS["released"]


@pytest.mark.parametrize("wake_at", [at(-300), None, at(300)])
def test_a_deferral(store: Store, wake_at: datetime | None) -> None:
    runs = planted(store, *HELD, wake_at=wake_at)
    assert store.release([(run.id, run.fence) for run in runs], NOW, due_at=at(90)).busy == frozenset()
    expected = [patched(run, CALLS["deferred"](run)) for run in runs]
    assert_rows(store, expected)
    assert {run.id: run.state for run in expected} == TRANSITIONS["deferred"]


@pytest.mark.parametrize(("columns", "newer"), [({"lease_expires_at": None}, 0), ({}, 1), ({}, -1)])
def test_no_renewal_and_no_release_without_a_lease_or_with_another_fence(
    store: Store, columns: dict[str, Any], newer: int
) -> None:
    runs = planted(store, *RunState, **columns)
    held = [(run.id, run.fence + newer) for run in runs]
    assert store.renew(held, at(60)) == ({}, frozenset())
    store.release(held, NOW)
    assert_rows(store, runs)


# -- passes


def commit(store: Store, run: RunRecord, patch: RunPatch) -> None:
    store.commit(Batch(run_id=run.id, fence=run.fence, now=NOW, run=patch))


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit(store: Store, name: str) -> None:
    columns = {"pending_request": "pause"} if name == "paused" else {}
    for run in planted(store, *starts_of(name), **columns):
        patch = CALLS[name](run)
        commit(store, run, patch)
        expected = patched(run, patch)
        assert_rows(store, [expected])
        assert expected.state == TRANSITIONS[name][RunState(run.state)]


def test_the_first_commit_after_a_crash_that_completes_the_run(store: Store) -> None:
    [run] = planted(store, RunState.RUNNING)
    patch = cast(RunPatch, {**transitions.progressed(run), **CALLS["completed"](run)})
    assert not sql_functions.is_completion(patch)  # so the other function of the database writes it
    commit(store, run, patch)
    assert_rows(store, [patched(run, patch)])


def test_the_function_for_runs_that_complete_is_used_for_them() -> None:
    """So `test_a_commit` compares what it writes, too."""
    assert sql_functions.is_completion(CALLS["completed"](odd_run(RunState.RUNNING)))


@pytest.mark.parametrize("asked", ["", "cancel", "cancel_rollback"])
def test_a_pause_whose_request_was_withdrawn(store: Store, asked: str) -> None:
    for state, after in ((RunState.RUNNING, ""), (RunState.ROLLING_BACK, "failed")):
        [run] = planted(store, state, pending_request=asked, state_after_rollback=after)
        commit(store, run, PAUSE)
        expected = patched(run, CALLS["pause_dropped"](run))
        assert_rows(store, [expected])
        assert expected.state == TRANSITIONS["pause_dropped"][state]
