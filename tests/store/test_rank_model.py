"""A model of ranks: whatever is started, claimed and parked in whatever order, every store claims the same runs, none
before it is due, and all that are due when it has room for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from durable.core import transitions
from durable.core.limits.ranks import Ranking
from durable.core.records import ENDED, RunChange, RunRecord
from durable.store import Store
from durable.store.memory import MemoryStore
from tests.store.making import NOW, a_new_run, finished, park, the

pytestmark = pytest.mark.slow

HELD = timedelta(days=1)
RANKINGS = [
    None,
    Ranking(priority="high", head_start=30),
    Ranking(priority="low", head_start=-30),
    Ranking(share="a"),
    Ranking(share="a", weight=2.0),
    Ranking(share="b", head_start=5),
    Ranking(share="c", head_start=-5),
]
_numbers = count()
SECONDS = st.integers(-3, 12)
OPERATIONS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, len(RANKINGS) - 1), SECONDS),
    st.tuples(st.just("start three"), st.integers(0, len(RANKINGS) - 1), SECONDS),
    st.tuples(st.just("claim"), st.integers(1, 4), st.integers(0, 1)),
    st.tuples(st.just("move"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("park"), st.integers(0, 9), SECONDS),
    st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.integers(-2, 20)),
)


@dataclass
class Model:
    """The same operations on a store and on one in memory."""

    store: Store
    reference: MemoryStore = field(default_factory=MemoryStore)
    number: int = field(default_factory=lambda: next(_numbers))
    seconds: int = 0
    started: list[str] = field(default_factory=list)
    held: list[RunRecord] = field(default_factory=list)

    @property
    def queues(self) -> tuple[str, str]:
        return f"q{self.number}", f"p{self.number}"

    def do(self, what: str, number: int, seconds: int) -> None:
        now = NOW + timedelta(seconds=self.seconds)
        if what in ("start", "start three"):
            self.start(RANKINGS[number], seconds, 1 if what == "start" else 3)
        elif what == "claim":
            self.claim(self.queues[seconds], number)
        elif what == "move":
            self.move(number, now)
        elif what == "pass":
            self.seconds += seconds
        elif self.held:
            run_id = self.held.pop(number % len(self.held)).id
            for store in (self.store, self.reference):
                run = the(store, run_id)  # each store draws fences of its own
                if what == "park":
                    park(store, run, wake_at=now + timedelta(seconds=seconds))
                elif what == "release":
                    store.release([(run.id, run.fence)], now)
                else:
                    finished(store, run)

    def start(self, ranking: Ranking | None, seconds: int, count: int) -> None:
        now = NOW + timedelta(seconds=self.seconds)
        ids = [f"{self.number}-{len(self.started) + each:03}" for each in range(count)]
        self.started += ids
        wake_at = now + timedelta(seconds=max(0, seconds))
        for store in (self.store, self.reference):
            of_all: dict[str, Any] = {
                "queue": self.queues[0],
                "created_at": now,
                "wake_at": wake_at,
                "ranking": ranking,
            }
            store.create([a_new_run(each, **of_all) for each in ids])

    def move(self, number: int, now: datetime) -> None:
        """Put a run into the other queue, whether a worker has it or not."""
        if self.started and the(self.reference, run_id := self.started[number % len(self.started)]).state not in ENDED:
            for store in (self.store, self.reference):
                to = self.queues[the(store, run_id).queue == self.queues[0]]
                moved = partial(transitions.requeued, queue=to, now=now)
                store.change(run_id, lambda run, _entries, moved=moved: RunChange(run=moved(run)))  # type: ignore[misc]

    def claim(self, queue: str, limit: int) -> None:
        now = NOW + timedelta(seconds=self.seconds)
        found, expected = (
            store.claim(queue=queue, now=now, lease_until=now + HELD, worker="w", limit=limit)
            for store in (self.store, self.reference)
        )
        assert [run.id for run in found] == [run.id for run in expected]
        if len(found) < limit:
            due = self.reference.due_queues(now, queues=[queue])
            assert not due, "nothing that is due is left"
        assert all(run.wake_at is not None and run.wake_at <= now for run in found)
        self.held += found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(  # a start of a delayed run between claims of its share's backlog
    operations=[
        *[("start", 0, 0), ("start", 0, 4), ("start three", 3, 0), ("pass", 0, 4), ("claim", 1, 0), ("start", 3, 1)],
        *[("claim", 1, 0), ("claim", 1, 0)],
    ]
)
@example(  # a poll of a clock that was set back finds nothing: the round of the shares goes on
    operations=[("start", 6, 3), ("start", 0, 8), ("start", 3, 0), ("pass", 0, -2), ("claim", 1, 0)]
)
@example(  # the first runs of a share in the queue that they are moved to
    operations=[("start three", 3, 0), ("move", 1, 0), ("pass", 0, 1), ("move", 0, 0)]
)
@given(operations=st.lists(OPERATIONS, max_size=30))
def test_every_store_claims_alike(database_store: Store, operations: list[tuple[str, int, int]]) -> None:
    model = Model(database_store)
    for what, number, seconds in operations:
        model.do(what, number, seconds)
    model.seconds += 60
    for queue in model.queues:
        model.claim(queue, 1000)  # whatever has happened, all runs are claimed in the end
    assert not model.reference.due_queues(NOW + timedelta(seconds=model.seconds), queues=model.queues)
