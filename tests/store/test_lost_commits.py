"""What a database has lost: a standby that lagged was promoted, or a backup was restored, behind a pass that goes on.

The tests take commits back by writing rows as they were before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from itertools import permutations
from typing import Any, Final

import pytest

from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.errors import ErrorInfo
from durable.core.limits.ranks import Ranking
from durable.core.limits.rates import Rate, RateWant
from durable.core.limits.slot_records import SlotChange, SlotKind, SlotWant
from durable.core.location import escape
from durable.core.records import (
    Activity,
    EntryRecord,
    EntryStatus,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    Witness,
)
from durable.core.transitions import fence_raised
from durable.core.witnesses import FIRST, is_of_first_claim
from durable.models import Entry, EntryMetadata, Run
from durable.store import Store
from durable.store.base import Released
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.children import SHAPES, everything
from tests.store.making import (
    HOSTILE,
    LEASE,
    NOW,
    a_full_entry,
    a_message,
    a_new_run,
    a_run,
    an_entry,
    at,
    commit,
    started,
    the,
)

# -- claims


def put_back(store: Store, run: RunRecord) -> None:
    """Write the row of a run as it was."""
    if isinstance(store, MemoryStore):
        store._runs[run.id] = run
        return
    assert isinstance(store, SQLiteStore | PostgresStore)
    columns = {each.name: getattr(run, each.name) for each in fields(run)}
    Run.objects.using(store.alias).filter(id=run.id).update(**columns)


def _of_queue(store: Store, seconds: float) -> list[RunRecord]:
    return store.claim(queue="q", now=at(seconds), lease_until=at(seconds) + LEASE, worker="w", limit=1)


def _by_rank(store: Store, seconds: float) -> list[RunRecord]:
    if store.get("ranked") is None:
        high = Ranking(priority="high", head_start=600)
        store.create([a_new_run("ranked", wake_at=at(86_400), ranking=high)])
    return _of_queue(store, seconds)


def _by_id(store: Store, seconds: float) -> list[RunRecord]:
    run = store.claim_run("run", now=at(seconds), lease_until=at(seconds) + LEASE, worker="w")
    return [] if run is None else [run]


DRAWN: Final = 6  # claims that are lost one after the other

CLAIMS: Final = {"of a queue": _of_queue, "by rank": _by_rank, "by its id": _by_id}
Claim = Callable[[Store, float], list[RunRecord]]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("fence", [0, 1, 7])
def test_a_lost_claim_gives_its_fence_to_no_other(store: Store, claim: Claim, fence: int) -> None:
    store.create([a_run(fence=fence)])
    before = the(store)
    fences = set()
    for _ in range(DRAWN):
        [held] = claim(store, 0)
        assert held.fence == the(store).fence > fence
        assert is_of_first_claim(held.fence) == (fence == 0)
        fences.add(held.fence)
        put_back(store, before)
    assert len(fences) == DRAWN


def test_claims_at_once_raise_each_fence(store: Store) -> None:
    store.create([a_run(f"run {n}", fence=n) for n in range(5)])
    claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=9)
    assert {run.id: run.fence for run in claimed} == {run.id: the(store, run.id).fence for run in claimed}
    assert [run.id for run in claimed if is_of_first_claim(run.fence)] == ["run 0"]
    assert all(run.fence >= FIRST for run in claimed)


def test_a_fence_is_exact_in_json_for_millions_of_claims(store: Store) -> None:
    held, steps = started(store), []
    for seconds in range(30, 1_000, 30):
        before, held = held, _by_id(store, seconds)[0]
        steps.append(held.fence - before.fence)
    assert min(steps) > 0
    assert 5_000_000 * max(steps) < 2**53


def test_a_raise_for_an_unanswered_commit_gives_no_number_twice(store: Store) -> None:
    held = started(store)
    before, fences = the(store), set()
    for _ in range(DRAWN):
        fences.add(store.change("run", lambda row, _entries: RunChange(run=fence_raised(row))).fence)
        put_back(store, before)
    assert len(fences) == DRAWN
    assert min(fences) > held.fence


GPU: Final = SlotWant("gpu", at_once=1, kind=SlotKind.STEP)
API: Final = RateWant("api", rate=Rate.of("1/s"))


def _committing(shape: str) -> Callable[[Store, RunRecord], Any]:
    return lambda store, held: commit(store, held, **SHAPES[shape](held))


WRITES: Final[dict[str, Callable[[Store, RunRecord], Any]]] = {
    **{shape: _committing(shape) for shape in SHAPES},
    "a slot": lambda store, held: store.acquire(held.id, held.fence, "a", [GPU], NOW),
    "a rate": lambda store, held: store.reserve(held.id, held.fence, "a", API, NOW),
}


def two_passes(store: Store) -> tuple[RunRecord, RunRecord]:
    """Two passes of a run: the database has lost the claim of the first one."""
    store.create([a_run(), a_run("other", queue="other")])
    before = the(store)
    [first] = _by_id(store, 0)
    put_back(store, before)
    [second] = _by_id(store, 0)
    return first, second


@pytest.mark.parametrize("write", WRITES)
def test_only_the_second_of_two_passes_writes(store: Store, write: str) -> None:
    first, second = two_passes(store)
    with pytest.raises(LeaseLost):
        WRITES[write](store, first)
    assert (store.load("run"), the(store).state) == ([], RunState.RUNNING)
    WRITES[write](store, second)


def test_only_the_second_of_two_passes_renews_and_releases(store: Store) -> None:
    first, second = two_passes(store)
    assert store.renew([("run", first.fence)], at(500)) == ({}, frozenset())
    store.release([("run", first.fence)], NOW)
    assert the(store).lease_expires_at == NOW + LEASE
    assert store.renew([("run", second.fence)], at(500)).kept == {"run": ""}
    store.release([("run", second.fence)], NOW)
    assert the(store).lease_expires_at is None


def test_only_the_second_of_two_passes_reports_and_saves(store: Store) -> None:
    first, second = two_passes(store)
    for held, is_noted in ((first, False), (second, True)):
        usual: dict[str, Any] = {"run_id": "run", "location": "a", "attempt": 1, "fence": held.fence}
        activity = Activity(**usual, kind="step", worker="w", began_at=NOW, timeout=9.0)
        store.report([activity], [], [])
        assert (store.ask_activities(the(store), "", NOW, stack=True) == ["a"]) == is_noted
        store.save_details([SavedDetails(**usual, generation=0, number=1, details="1")])
        assert ("a" in store.load("run").saved) == is_noted


@pytest.mark.parametrize("order", list(permutations(("first", "second", "first again"))))
def test_the_passes_commit_in_any_order(store: Store, order: Sequence[str]) -> None:
    first, second = two_passes(store)
    for name in order:
        if name == "second":
            commit(store, second, entries=[an_entry("by the second")])
        else:
            with pytest.raises(LeaseLost):
                commit(store, first, entries=[an_entry("by the first")])
    assert [each.location for each in store.load("run")] == ["by the second"]


def test_a_pass_whose_claim_is_lost_writes_nothing_before_the_next_claim(store: Store) -> None:
    store.create([a_run()])
    before = the(store)
    [held] = _by_id(store, 0)
    put_back(store, before)
    with pytest.raises(LeaseLost):
        commit(store, held, entries=[an_entry()])
    assert store.renew([("run", held.fence)], NOW + timedelta(days=1)) == ({}, frozenset())


# -- commits of a pass that goes on


def step(location: str = "a", **columns: Any) -> EntryRecord:
    done = {"status": EntryStatus.COMPLETED, "attempts": 1, "finished_ordinal": 99, "output": "1"}
    return an_entry(location, **{**done, **columns})


def left_by(entry: EntryRecord, *, is_new: bool) -> Witness:
    return Witness(entry.location, entry.ordinal, None if is_new else entry)


def lose(store: Store, *locations: str) -> None:
    """Take the commits back that have made these entries."""
    if isinstance(store, MemoryStore):
        for location in locations:
            del store._entries["run"][location]
        return
    assert isinstance(store, SQLiteStore | PostgresStore)
    gone = Entry.objects.using(store.alias).filter(run_id="run", location__in=locations)
    EntryMetadata.objects.using(store.alias).filter(entry__in=gone).delete()
    assert gone.delete()[0] == len(locations)


SHAPES_AFTER: Final[dict[str, Callable[[RunRecord], dict[str, Any]]]] = {
    **SHAPES,
    "nothing but the run": lambda _: {"run": {"summary": "changed"}},
    "slots": lambda _: {"entries": [an_entry("new")], "slots": SlotChange(released=["old"])},
    "work and a save": lambda _: {"entries": [an_entry("new")], "worked": 3.0, "forgotten": ["old"]},
    "a message to another run": lambda _: {"entries": [an_entry("new")], "sends": [a_message("other")]},
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("shape", SHAPES_AFTER)
def test_each_shape_of_a_commit_looks_for_its_witnesses(store: Store, shape: str, number: int) -> None:
    held = started(store)
    started(store, "other")
    commit(store, held, entries=[old := an_entry("old"), last := step()])
    witnesses = (left_by(old, is_new=True), left_by(last, is_new=True))[2 - number :]
    parts = SHAPES_AFTER[shape](held)
    lose(store, "a")
    before = everything(store)
    with pytest.raises(CommitsLost):
        commit(store, held, witnesses=witnesses, **parts)
    assert (everything(store), store.get("child")) == (before, None)
    with pytest.raises(LeaseLost) as refused:
        commit(store, held, fence=held.fence + 1, witnesses=witnesses, **parts)
    assert not isinstance(refused.value, CommitsLost), "another worker's fence comes first"
    commit(store, held, entries=[last])
    commit(store, held, witnesses=witnesses, **parts)
    assert everything(store) != before


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "data": {"data": {"iteration": 2}},
    "status": {"status": EntryStatus.EXHAUSTED},
    "attempts": {"attempts": 2},
    "error": {"error": ErrorInfo("ValueError", "why", "")},
    "last_attempt_at": {"last_attempt_at": at(3)},
    "next_attempt_at": {"next_attempt_at": at(4.000001)},
    "completed_at": {"completed_at": at(5)},
    "finished_ordinal": {"finished_ordinal": 1_000_000},
    "rollback_completed_at": {"rollback_completed_at": at(6)},
    "rollback_error": {"rollback_error": ErrorInfo("ValueError", "why", "")},
}


@pytest.mark.parametrize("column", CHANGES)
def test_a_change_of_an_entry_is_a_witness(store: Store, column: str) -> None:
    held = started(store)
    first = step(data={"iteration": 1}, finished_ordinal=None, next_attempt_at=at(1), last_attempt_at=at(2))
    commit(store, held, entries=[first])
    second = replace(first, **CHANGES[column])
    commit(store, held, entries=[second], witnesses=(left_by(first, is_new=True),))
    commit(store, held, entries=[an_entry("b")], witnesses=(left_by(second, is_new=False),))
    commit(store, held, entries=[first])  # as the database was before the change
    with pytest.raises(CommitsLost):
        commit(store, held, entries=[an_entry("c")], witnesses=(left_by(second, is_new=False),))
    commit(store, held, entries=[an_entry("c")], witnesses=(left_by(first, is_new=False),))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("shape", SHAPES_AFTER)
def test_each_shape_of_a_commit_looks_for_an_output(store: Store, shape: str, number: int) -> None:
    held = started(store)
    started(store, "other")
    begun = step(status=EntryStatus.RUNNING, finished_ordinal=None, output=None)
    commit(store, held, entries=[old := an_entry("old"), begun])
    witnesses = (left_by(old, is_new=True), Witness("a", begun.ordinal, has_output=True))[2 - number :]
    before = everything(store)
    with pytest.raises(CommitsLost):
        commit(store, held, witnesses=witnesses, **SHAPES_AFTER[shape](held))
    assert everything(store) == before
    commit(store, held, entries=[replace(begun, output="1")], witnesses=(Witness("a", begun.ordinal),))
    commit(store, held, witnesses=witnesses, **SHAPES_AFTER[shape](held))
    assert everything(store) != before


def test_an_entry_that_was_committed_before_is_written_by_the_commit_that_looks_for_it(store: Store) -> None:
    held = started(store)
    begun = step(status=EntryStatus.RUNNING, finished_ordinal=None, output=None)
    commit(store, held, entries=[begun])
    done = replace(begun, status=EntryStatus.COMPLETED, finished_ordinal=100, output='"x"', data={"more": 1})
    commit(store, held, entries=[done], witnesses=(left_by(begun, is_new=True),))
    assert list(store.load("run")) == [done]
    lose(store, "a")
    with pytest.raises(CommitsLost):
        commit(store, held, entries=[done], witnesses=(left_by(begun, is_new=True),))
    assert list(store.load("run")) == []


def test_any_text_is_compared_as_it_was_written(store: Store) -> None:
    for number, text in enumerate(HOSTILE):
        held = started(store, f"run {number}")
        entry = a_full_entry(escape(text) or "x", text)
        commit(store, held, entries=[entry])
        commit(
            store, held, entries=[an_entry("b")], witnesses=(left_by(entry, is_new=True), left_by(entry, is_new=False))
        )


def test_an_older_entry_at_the_same_location_is_no_witness(store: Store) -> None:
    held = started(store)
    older, newer = step(), step()
    commit(store, held, entries=[older])
    with pytest.raises(CommitsLost):
        commit(store, held, entries=[an_entry("b")], witnesses=(left_by(newer, is_new=True),))


def test_the_entry_of_another_run_is_no_witness(store: Store) -> None:
    held, other = started(store), started(store, "other")
    commit(store, other, entries=[entry := step()])
    with pytest.raises(CommitsLost):
        commit(store, held, entries=[an_entry("b")], witnesses=(left_by(entry, is_new=True),))


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.ROLLING_BACK])
def test_the_state_of_the_run_is_a_witness(store: Store, state: RunState) -> None:
    held = started(store)
    if state == RunState.ROLLING_BACK:
        commit(store, held, run={"state": state, "state_after_rollback": RunState.FAILED})
        commit(store, held, entries=[step()], witnesses=(Witness(state=state),))
    else:
        with pytest.raises(CommitsLost):
            commit(store, held, entries=[step()], witnesses=(Witness(state=RunState.ROLLING_BACK),))


def test_the_witness_may_be_deleted_by_the_commit_that_looks_for_it(store: Store) -> None:
    held = started(store)
    commit(store, held, entries=[entry := step()])
    commit(store, held, entries=[an_entry("b")], deleted=["a"], witnesses=(left_by(entry, is_new=True),))
    assert [each.location for each in store.load("run")] == ["b"]


def test_a_run_of_which_commits_are_lost_is_released_without_a_crash(store: Store) -> None:
    held = started(store)
    with pytest.raises(CommitsLost):
        commit(store, held, entries=[step()], witnesses=(left_by(step(), is_new=True),))
    assert store.release([(held.id, held.fence)], at(1)) == Released(frozenset(), frozenset({"q"}))
    [again] = _of_queue(store, 1)
    assert again.crashes == 0
