"""A model of leases: workers with clocks of their own, and operators and senders with another, over one store.

A worker keeps to the protocol of a pass: it claims, looks into the inbox, receives or parks with the `change_seq` that
it knew when it claimed. It may do each of these long after its lease ran out. After every move the machine compares
what the store holds with what the accepted moves say: at most one writer, no wake-up lost, states only as allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from durable import operations, runtime
from durable.core.control_flow import LeaseLost
from durable.core.errors import InvalidTransitionError
from durable.core.location import escape, is_awaited, waiting_text
from durable.core.records import (
    ENDED,
    EntryKind,
    EntryRecord,
    MessageState,
    OutgoingMessage,
    Request,
    RunPatch,
    RunRecord,
    RunState,
)
from durable.store import Store
from durable.store.memory import MemoryStore
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from tests.store.emptying import empty
from tests.store.making import a_batch

LEASE = timedelta(seconds=30)
RUNS = ["one", "two"]
WORKERS = [0, 1, 2]
QUEUES = ["mail", "a/b"]

runs = st.sampled_from(RUNS)
workers = st.sampled_from(WORKERS)
queues = st.sampled_from(QUEUES)
#: A clock moves by hours and jumps back.
jumps = st.sampled_from([0.001, 1.0, 29.0, 31.0, 3600.0, -0.5, -20.0, -7200.0])

#: From each state, where a move may lead. What has ended stays so; this machine recovers nothing.
MOVES: dict[str, set[str]] = {
    "pending": {"pending", "running", "paused", "cancelled"},
    "running": {"running", "pending", "sleeping", "paused", "completed", "failed", "cancelled"},
    "sleeping": {"sleeping", "running", "paused", "cancelled", "pending"},
    "paused": {"paused", "pending", "cancelled"},
    "completed": {"completed"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
}


@dataclass
class Holding:
    """What a worker believes to hold, and what it has seen since its claim."""

    run: RunRecord
    looked: set[str] = field(default_factory=set)  # queues that were empty when it looked


class LeaseMachine(RuleBasedStateMachine):
    """Subclasses give the store."""

    def make_store(self) -> Store:
        """An empty store."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        start = datetime(2026, 1, 1, tzinfo=UTC)
        self.clocks = {number: start + timedelta(seconds=number * 7) for number in WORKERS}
        self.outside = start
        self.latest = max(self.clocks.values())
        self.held: dict[tuple[int, str], Holding] = {}
        self.numbers = count(1)
        self.written: dict[str, dict[str, int]] = {run: {} for run in RUNS}  # location to the fence that wrote it
        self.sent: dict[str, list[str]] = {run: [] for run in RUNS}
        self.received: dict[str, list[str]] = {run: [] for run in RUNS}
        self.states = dict.fromkeys(RUNS, "pending")
        self.fences = dict.fromkeys(RUNS, 0)
        self.before = runtime.current()
        self.installed = runtime.Runtime(
            store=self.store,
            codec=self.before.codec,
            now=lambda: self.outside,
            notify=lambda _queues: None,
            notify_at=lambda _queue, _moment: None,
            poll_wait=lambda _seconds: None,
            after_commit=lambda callback: callback(),
        )
        runtime.activate(self.installed)
        self.store.create(
            [RunRecord(id=run, workflow="w", queue="q", input="[]", created_at=start, wake_at=start) for run in RUNS]
        )

    def teardown(self) -> None:
        """Put the backend back."""
        runtime.deactivate(self.installed)

    # -- the workers

    @rule(worker=workers, limit=st.integers(1, 2))
    def claim(self, worker: int, limit: int) -> None:
        now = self.clocks[worker]
        before = {run: self.row(run) for run in RUNS}
        for run in self.store.claim(queue="q", now=now, lease_until=now + LEASE, worker=f"w{worker}", limit=limit):
            old = before[run.id]
            assert old.lease_expires_at is None or old.lease_expires_at <= now, "a live lease was taken"
            assert run.fence == self.row(run.id).fence > old.fence
            assert run.crashes == old.crashes + (old.lease_expires_at is not None)
            self.held[worker, run.id] = Holding(run)

    @rule(worker=workers)
    def heartbeat(self, worker: int) -> None:
        held = [(run, each.run.fence) for (who, run), each in self.held.items() if who == worker]
        renewed = self.store.renew(held, self.clocks[worker] + LEASE).kept
        for run, fence in held:
            row = self.row(run)
            assert (run in renewed) == (row.fence == fence and row.lease_expires_at is not None)

    @rule(worker=workers)
    def release(self, worker: int) -> None:
        held = [(run, each.run.fence) for (who, run), each in self.held.items() if who == worker]
        self.store.release(held, self.clocks[worker])
        self.forget(worker, *(run for run, _ in held))

    @rule(worker=workers, run=runs)
    def flush(self, worker: int, run: str) -> None:
        if (worker, run) in self.held:
            location = f"e{next(self.numbers)}"
            if self.commit(worker, run, entries=[self.entry(worker, location)]):
                self.written[run][location] = self.held[worker, run].run.fence

    @rule(worker=workers, run=runs, name=queues)
    def look_and_receive(self, worker: int, run: str, name: str) -> None:
        held = self.held.get((worker, run))
        if held is None:
            return
        found = self.store.inbox(run, [name], 2, None)
        if not found:
            held.looked.add(name)
            return
        location = f"m{next(self.numbers)}"
        received = [(each.id, location) for each in found]
        if self.commit(worker, run, entries=[self.entry(worker, location)], received=received):
            self.written[run][location] = held.run.fence
            self.received[run] += [each.id for each in found]

    @rule(worker=workers, run=runs, to=runs, name=queues)
    def send_from_workflow(self, worker: int, run: str, to: str, name: str) -> None:
        if (worker, run) not in self.held:
            return
        message = self.message(to, name, self.clocks[worker])
        if self.commit(worker, run, sends=[message]):
            self.sent[to].append(message.id)

    @rule(worker=workers, run=runs, deadline=st.sampled_from([None, 5.0, 3600.0]), own=st.booleans())
    def park(self, worker: int, run: str, deadline: float | None, own: bool) -> None:
        held = self.held.get((worker, run))
        if held is None:
            return
        if held.run.pending_request:  # a pass that was claimed with a request does nothing else
            self.honour(worker, run, held.run.pending_request)
            return
        now = self.clocks[worker]
        sends = [self.message(run, QUEUES[0], now)] if own else []
        patch: RunPatch = {
            "state": RunState.SLEEPING,
            "wake_at": None if deadline is None else now + timedelta(seconds=deadline),
            "waiting_for": waiting_text(frozenset(map(escape, held.looked)) if held.looked else None),
            "lease_expires_at": None,
            "worker": "",
        }
        if self.commit(worker, run, run_patch=patch, park_change_seq=held.run.change_seq, sends=sends):
            self.sent[run] += [each.id for each in sends]
        self.forget(worker, run)

    @rule(worker=workers, run=runs, state=st.sampled_from([RunState.COMPLETED, RunState.FAILED]))
    def end(self, worker: int, run: str, state: RunState) -> None:
        if (worker, run) in self.held:
            now = self.clocks[worker]
            patch: RunPatch = {
                "state": state,
                "wake_at": None,
                "lease_expires_at": None,
                "worker": "",
                "pending_request": Request.NONE,
                "waiting_for": "",
                "finished_at": now,
            }
            self.commit(worker, run, run_patch=patch)
            self.forget(worker, run)

    def honour(self, worker: int, run: str, request: str) -> None:
        patch: RunPatch = {
            "state": RunState.PAUSED if request == Request.PAUSE else RunState.CANCELLED,
            "wake_at": None,
            "lease_expires_at": None,
            "worker": "",
            "pending_request": Request.NONE,
        }
        if request != Request.PAUSE:
            patch |= {"waiting_for": "", "finished_at": self.clocks[worker]}
        self.commit(worker, run, run_patch=patch)
        self.forget(worker, run)

    # -- the outside

    @rule(run=runs, name=queues)
    def send(self, run: str, name: str) -> None:
        message = self.message(run, name, self.outside)
        [stored], _ = self.store.send([message])
        assert stored is not None
        self.sent[run].append(stored.id)

    @rule(run=runs, verb=st.sampled_from(["wake", "pause", "resume", "cancel"]))
    def steer(self, run: str, verb: str) -> None:
        try:
            getattr(operations, verb)(run)
        except InvalidTransitionError:
            return
        row = self.row(run)
        if verb in ("wake", "resume"):
            assert self.is_seen_to(row)

    @rule(worker=workers, seconds=jumps)
    def clock_of_a_worker(self, worker: int, seconds: float) -> None:
        self.clocks[worker] += timedelta(seconds=seconds)
        self.latest = max(self.latest, self.clocks[worker])

    @rule(seconds=jumps)
    def clock_outside(self, seconds: float) -> None:
        self.outside += timedelta(seconds=seconds)
        self.latest = max(self.latest, self.outside)

    @precondition(lambda self: any(state in ENDED for state in self.states.values()))
    @rule(worker=workers, run=runs)
    def claim_what_has_ended(self, worker: int, run: str) -> None:
        now = self.clocks[worker]
        if self.states[run] in ENDED:
            assert self.store.claim_run(run, now=now, lease_until=now + LEASE, worker="w") is None

    # -- what always holds

    @invariant()
    def states_move_as_allowed(self) -> None:
        for run in RUNS:
            row = self.row(run)
            assert str(row.state) in MOVES[self.states[run]], f"{run} went from {self.states[run]} to {row.state}"
            assert row.fence >= self.fences[run]
            self.states[run], self.fences[run] = str(row.state), row.fence

    @invariant()
    def the_history_is_what_accepted_commits_wrote(self) -> None:
        for run in RUNS:
            assert {entry.location: entry.data["fence"] for entry in self.store.load(run)} == self.written[run]

    @invariant()
    def each_message_is_there_once_and_in_order(self) -> None:
        for run in RUNS:
            messages = self.store.messages(run)
            assert [each.id for each in messages] == self.sent[run]
            assert [each.order for each in messages] == list(range(1, len(messages) + 1))
            taken = {each.id for each in messages if each.state == MessageState.RECEIVED}
            assert len(self.received[run]) == len(taken)
            assert set(self.received[run]) == taken

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        for run in RUNS:
            row = self.row(run)
            if row.state in ENDED or row.state == RunState.PAUSED:
                continue
            pending = [each for each in self.store.messages(run) if each.state == MessageState.PENDING]
            if any(is_awaited(row.waiting_for, escape(each.queue)) for each in pending) or row.pending_request:
                assert self.is_seen_to(row), f"{run} sleeps although it is called: {row}"

    @invariant()
    def what_is_held_is_found_again(self) -> None:
        for run in RUNS:
            row = self.row(run)
            if row.lease_expires_at is not None:
                assert row.wake_at is not None, "a worker that dies would leave it behind"
                assert row.wake_at <= self.latest

    # -- details

    def row(self, run: str) -> RunRecord:
        found = self.store.get(run)
        assert found is not None
        return found

    def is_seen_to(self, row: RunRecord) -> bool:
        """Whether a worker has the run, or will find it due by some clock's reading."""
        return row.lease_expires_at is not None or (row.wake_at is not None and row.wake_at <= self.latest)

    def message(self, to: str, name: str, now: datetime) -> OutgoingMessage:
        return OutgoingMessage(id=f"message-{next(self.numbers)}", to=to, queue=name, body="1", sent_at=now)

    def entry(self, worker: int, location: str) -> EntryRecord:
        fence = max(each.run.fence for (who, _), each in self.held.items() if who == worker)
        return EntryRecord(
            location=location,
            kind=EntryKind.STEP,
            ordinal=next(self.numbers),
            created_at=self.clocks[worker],
            data={"fence": fence},
        )

    def forget(self, worker: int, *names: str) -> None:
        for run in names:
            self.held.pop((worker, run), None)

    def commit(self, worker: int, run: str, *, run_patch: RunPatch | None = None, **parts: Any) -> bool:
        """Whether the commit was accepted: if, and only if, no worker has claimed the run since."""
        fence = self.held[worker, run].run.fence
        for entry in parts.get("entries", ()):
            entry.data = {"fence": fence}
        before = (self.row(run), self.store.load(run), self.store.messages(run))
        batch = a_batch(self.held[worker, run].run, now=self.clocks[worker], run=run_patch, **parts)
        try:
            self.store.commit(batch)
        except LeaseLost:
            assert before[0].fence > fence, "the only writer was refused"
            assert (self.row(run), self.store.load(run), self.store.messages(run)) == before
            self.forget(worker, run)
            return False
        assert before[0].fence == fence, "a second writer was accepted"
        return True


class InMemory(LeaseMachine):
    def make_store(self) -> Store:
        return MemoryStore()


@pytest.mark.slow
def test_leases_in_memory() -> None:
    run_state_machine_as_test(InMemory, settings=settings(max_examples=250, stateful_step_count=40))


@pytest.mark.slow
def test_leases_in_a_database(database_store: SQLiteStore | PostgresStore) -> None:
    class InDatabase(LeaseMachine):
        def make_store(self) -> Store:
            empty(database_store.alias)
            return database_store

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    small = settings(max_examples=20, stateful_step_count=25, suppress_health_check=checks)
    run_state_machine_as_test(InDatabase, settings=small)
