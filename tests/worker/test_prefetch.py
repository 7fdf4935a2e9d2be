"""Histories of runs that are claimed together are loaded together, and are what each pass would have loaded itself."""

from collections import Counter
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from durable import Handle
from durable.core.errors import ErrorInfo
from durable.core.records import Batch, EntryKind, EntryRecord, EntryStatus, RunChange, RunRecord
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.store import Store, store_for
from durable.worker import executor
from durable.worker.executor import RunExecutor
from durable.worker.presence import ShutdownFlag
from tests.benchmarks.workflows import receiving
from tests.support.runs import Passes, finish, new_runs, park
from tests.support.worker import lease_manager, work_off

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]
QUEUE = "default"


class Counting:
    """The store, and how often what of it was called."""

    def __init__(self) -> None:
        self.store = store_for("default")
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.store, name)


@pytest.fixture
def store() -> Any:
    return Counting()


def a_step(location: str) -> EntryRecord:
    return EntryRecord(location, EntryKind.STEP, 0, timezone.now(), status=EntryStatus.COMPLETED, output='"x"')


def record_and_park(count: int) -> Any:
    """The pass of a workflow that makes so many steps and is due again."""

    def work(record: RunRecord, store: Store, _eviction: Eviction) -> PassOutcome:
        entries = [a_step(f"{record.id}-{number}") for number in range(count)]
        store.commit(Batch(run_id=record.id, fence=record.fence, now=timezone.now(), entries=entries))
        return park(record, store, None)

    return work


def pass_all(store: Any, execute: Passes) -> None:
    work_off(QUEUE, store=store, execute=execute)


def passes_once(store: Any, work: Any) -> None:
    """One claim of all that is due, and a pass of each."""
    stop = ShutdownFlag()
    with lease_manager(store, stop) as manager:
        holder = RunExecutor(store=store, execute=Passes(work), leases=manager, stop=stop)
        for record in holder.claim(QUEUE, 10, 0.0) or []:
            holder.execute(record)


class Loads:
    """A pass that loads and ends; what it found, by run."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}

    def __call__(self, record: RunRecord, store: Store, _eviction: Eviction) -> PassOutcome:
        self.found[record.id] = {entry.location for entry in store.load(record.id)}
        assert {entry.location for entry in store.load(record.id)} == self.found[record.id], "the second time anew"
        return finish(record, store)


def test_one_question_for_all_instead_of_one_for_each(store: Any) -> None:
    ids = new_runs(store, 5)
    passes_once(store, record_and_park(3))
    assert store.calls["load_short"] == 0, "at the first claim there is nothing to load"
    loads = Loads()
    pass_all(store, Passes(loads))
    assert loads.found == {each: {f"{each}-0", f"{each}-1", f"{each}-2"} for each in ids}
    assert store.calls["load_short"] == 1
    assert store.calls["load"] == 5, "the second looks alone"


def test_a_long_history_is_loaded_by_its_own_pass(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "PREFETCH_MAX_ENTRIES", 2)
    new_runs(store, 2)
    passes_once(store, record_and_park(3))
    loads = Loads()
    pass_all(store, Passes(loads))
    assert [len(found) for found in loads.found.values()] == [3, 3]
    assert store.calls["load"] == 4


def test_a_run_alone_is_loaded_by_its_own_pass(store: Any) -> None:
    new_runs(store, 1)
    passes_once(store, record_and_park(1))
    pass_all(store, Passes(Loads()))
    assert store.calls["load_short"] == 0


def test_a_database_that_stumbles_over_it_costs_no_run(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = new_runs(store, 3)
    passes_once(store, record_and_park(1))

    def stumble(*_: Any) -> None:
        raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(type(store.store), "load_short", stumble)
    loads = Loads()
    pass_all(store, Passes(loads))
    assert loads.found == {each: {f"{each}-0"} for each in ids}


@pytest.mark.postgres
def test_a_history_with_a_moment_beyond_the_calendar_is_loaded_as_others(store: Any) -> None:
    odd, *others = new_runs(store, 3)
    passes_once(store, record_and_park(1))
    with connection.cursor() as cursor:
        of_run = "(SELECT run_id FROM durable_entry WHERE id = entry_id)"
        cursor.execute(f"UPDATE durable_entrymetadata SET completed_at = 'infinity' WHERE {of_run} = %s", [odd])
    loads = Loads()
    pass_all(store, Passes(loads))
    assert loads.found == {each: {f"{each}-0"} for each in (odd, *others)}


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("durable_entrymetadata", "error", "[]"),
        ("durable_entry", "data", "{"),
    ],
)
def test_a_history_that_cannot_be_read_holds_up_no_other_run(store: Any, table: str, column: str, value: str) -> None:
    unreadable, *others = new_runs(store, 3)
    passes_once(store, record_and_park(1))
    key = "run_id" if table == "durable_entry" else "(SELECT run_id FROM durable_entry WHERE id = entry_id)"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {key} = %s", [value, unreadable])
    loads = Loads()
    pass_all(store, Passes(loads))
    assert loads.found == {each: {f"{each}-0"} for each in others}


def test_what_is_handed_back_is_loaded_anew(store: Any) -> None:
    """Another worker may have written meanwhile."""
    ids = new_runs(store, 2)
    passes_once(store, record_and_park(1))
    stop, loads = ShutdownFlag(), Loads()
    with lease_manager(store, stop) as manager:
        holder = RunExecutor(store=store, execute=Passes(loads), leases=manager, stop=stop)
        batch = holder.claim(QUEUE, 10, 0.0)
        assert batch is not None
        assert len(batch) == 2
        manager.release(batch)
        passes_once(store, record_and_park(4))
        for record in holder.claim(QUEUE, 10, 0.0) or []:
            holder.execute(record)
    assert {run: len(found) for run, found in loads.found.items()} == dict.fromkeys(ids, 4)


def test_workflows_that_were_called_together_go_on_with_their_own_histories() -> None:
    handles: list[Handle] = receiving.start_many([()] * 4)
    work_off_production()
    for number, handle in enumerate(handles):
        handle.send("news", float(number))
    work_off_production()
    assert [handle.state for handle in handles] == ["completed"] * 4


def work_off_production() -> None:
    work_off(QUEUE, store=store_for("default"))


def test_a_verb_between_the_claim_and_the_pass_is_not_lost(store: Any) -> None:
    """The pass knows the run as it was claimed; its parking is overruled, and the next one sees what was done."""
    ids = new_runs(store, 2)
    passes_once(store, record_and_park(1))
    outcomes: list[str] = []

    def work(record: RunRecord, store: Store, _eviction: Eviction) -> PassOutcome:
        if not outcomes:
            for run_id in ids:
                store.change(run_id, lambda _run, _entries: done_from_outside())
        batch = Batch(
            run_id=record.id,
            fence=record.fence,
            now=timezone.now(),
            run={"state": "sleeping", "wake_at": None, "lease_expires_at": None, "worker": ""},
            park_change_seq=record.change_seq,
        )
        store.commit(batch)
        row = store.get(record.id)
        assert row is not None
        outcomes.append("due" if row.wake_at is not None else "parked")
        return PassOutcome(state=row.state)

    passes_once(store, work)
    assert outcomes == ["due", "due"]


def done_from_outside() -> RunChange:
    return RunChange(run={"error": ErrorInfo("E", "written meanwhile", "")}, entries=[a_step("done from outside")])
