"""A model of limits: whatever runs do in whatever order, no more slots are held than allowed, and no slot is free while
a run that is not paused, and whose queue is not, waits for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable.core import transitions
from durable.core.limits.slot_records import SlotChange, SlotKind, SlotWant
from durable.core.records import ENDED, Hold, HoldKind, RunChange, RunRecord, RunState
from durable.core.summary import Summary, SummaryKind
from durable.store import Store
from tests.store.making import LEASE, NOW, a_run, commit, park, the

pytestmark = pytest.mark.slow

RUNS = 4
#: Which of the two limits an operation wants: one that allows one slot, one that allows two for a key, or both.
WANTS = ["x", "y", "xy"]

_numbers = count()
ACTS = [
    "acquire",
    "give up",
    "park",
    "end",
    "cancel",
    "pause",
    "resume",
    "pause queue",
    "resume queue",
    "move",
    "crash",
    "sweep",
]
OPERATIONS = st.tuples(st.sampled_from(ACTS), st.integers(0, RUNS - 1), st.sampled_from(WANTS))


class Model:
    """Does operations that make sense, and skips others."""

    def __init__(self, store: Store) -> None:
        self.store = store
        number = next(_numbers)
        self.ids = [f"run-{number}-{each}" for each in range(RUNS)]
        self.slots = {
            "x": SlotWant(f"x{number}", "", SlotKind.STEP, 1),
            "y": SlotWant(f"y{number}", "k", SlotKind.STEP, 2),
        }
        self.allowed = {(each.limit, each.key): each.at_once for each in self.slots.values()}
        self.held: dict[str, RunRecord] = {}  # by workers
        self.waiting: set[str] = set()  # parked in a line
        self.wants: dict[str, list[SlotWant]] = {}  # of runs that wait or hold
        self.queues = {each: f"q{number}-{place % 2}" for place, each in enumerate(self.ids)}
        self.both = set(self.queues.values())
        self.paused: set[str] = set()
        store.create([a_run(each, queue=self.queues[each]) for each in self.ids])

    def has(self, run_id: str) -> bool:
        """Let a worker have the run, if one can."""
        if run_id not in self.held:
            found = self.store.claim_run(run_id, now=NOW, lease_until=NOW + LEASE, worker="w")
            if found is not None:
                self.held[run_id] = found
        return run_id in self.held

    def acquire(self, run_id: str, names: str) -> None:
        if self.has(run_id):
            self.wants.setdefault(run_id, [self.slots[each] for each in names])
            run = self.held[run_id]
            answer = self.store.acquire(run_id, run.fence, "s", self.wants[run_id], NOW)
            if not answer.is_granted:
                assert answer.held <= answer.at_once
                assert answer.place >= 1

    def give_up(self, run_id: str) -> None:
        if self.has(run_id):
            commit(self.store, self.held[run_id], slots=SlotChange(released=["s"]))
            self.wants.pop(run_id, None)

    def park(self, run_id: str) -> None:
        if self.has(run_id):
            held = self.held.pop(run_id)
            waits = any(not each.is_held for each in self.store.slots([run_id]))
            (self.waiting.add if waits else self.waiting.discard)(run_id)
            park(self.store, held, batch={"slots": SlotChange(awaited=["s"] if waits else [])})

    def end(self, run_id: str) -> None:
        if self.has(run_id):
            held = self.held.pop(run_id)
            commit(self.store, held, run=transitions.completed(held, now=NOW, output="1"), slots=SlotChange())
            self.wants.pop(run_id, None)

    def _change(self, run_id: str, change: Callable[[RunRecord], Any], *states: RunState) -> None:
        if run_id not in self.held and the(self.store, run_id).state in states:
            self.store.change(run_id, lambda run, _entries: RunChange(run=change(run)))

    def cancel(self, run_id: str) -> None:
        summary = Summary(SummaryKind.CANCELLED, reason="")
        self._change(
            run_id,
            lambda run: transitions.cancelled_at_once(run, now=NOW, reason="", summary=summary),
            *(RunState.PENDING, RunState.SLEEPING, RunState.PAUSED),
        )

    def pause(self, run_id: str) -> None:
        summary = Summary(SummaryKind.PAUSED)
        self._change(
            run_id, lambda run: transitions.paused_at_once(run, summary=summary), RunState.PENDING, RunState.SLEEPING
        )

    def resume(self, run_id: str) -> None:
        summary = Summary(SummaryKind.RESUMED)
        self._change(run_id, lambda run: transitions.resumed(run, now=NOW, summary=summary), RunState.PAUSED)

    def pause_queue(self, run_id: str) -> None:
        queue = self.queues[run_id]
        assert self.store.hold(Hold(kind=HoldKind.QUEUE, name=queue, held_at=NOW)) == (queue not in self.paused)
        self.paused.add(queue)

    def resume_queue(self, run_id: str) -> None:
        queue = self.queues[run_id]
        assert self.store.lift(HoldKind.QUEUE, queue) == (queue in self.paused)
        self.paused.discard(queue)

    def move(self, run_id: str) -> None:
        run = the(self.store, run_id)
        if run.state not in ENDED:
            self.queues[run_id] = next(each for each in sorted(self.both) if each != run.queue)
            moved = partial(transitions.requeued, queue=self.queues[run_id], now=NOW)
            self.store.change(run_id, lambda found, _entries: RunChange(run=moved(found)))

    def crash(self, run_id: str) -> None:
        if run_id in self.held:
            held = self.held.pop(run_id)
            self.store.release([(run_id, held.fence)], NOW)

    def check(self) -> None:
        """Whatever was left to the sweep, all that can be handed on is handed on after it."""
        rows = self.store.slots(self.ids)
        for place, most in self.allowed.items():
            assert sum(each.is_held for each in rows if (each.limit, each.key) == place) <= (most or 0)
        for _ in range(2):  # what the first takes back from a paused queue, the second hands on
            self.store.sweep_slots(NOW, 100)
        rows = self.store.slots(self.ids)
        runs = {each: the(self.store, each) for each in self.ids}
        full = {
            place
            for place, most in self.allowed.items()
            if sum(each.is_held for each in rows if (each.limit, each.key) == place) >= (most or 0)
        }
        for row in rows:
            run = runs[row.run_id]
            assert run.state not in ENDED, "no slot outlives its run"
            is_passed_by = run.state == RunState.PAUSED or run.queue in self.paused
            if row.is_held:
                is_used = run.lease_expires_at is not None
                assert is_used or not is_passed_by, "nobody may use a slot that is held"
                continue
            assert (row.limit, row.key) in full or is_passed_by, "a slot is free, and a run waits for it"
        for run_id, wants in self.wants.items():
            mine = [each for each in rows if each.run_id == run_id]
            if runs[run_id].state in ENDED:
                continue
            assert len([each for each in mine if each.is_held]) in (0, len(wants)), "together or not at all"
            if mine and all(each.is_held for each in mine) and run_id in self.waiting - self.held.keys():
                is_asked = runs[run_id].wake_at is not None or runs[run_id].state == RunState.PAUSED
                assert is_asked, "a run that has its slots is due"


@given(operations=st.lists(OPERATIONS, max_size=40))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_sequence(store: Store, operations: list[tuple[str, int, str]]) -> None:
    model = Model(store)
    for act, number, names in operations:
        if act == "acquire":
            model.acquire(model.ids[number], names)
        elif act == "sweep":
            store.sweep_slots(NOW, 100)
        else:
            getattr(model, act.replace(" ", "_"))(model.ids[number])
    model.check()
