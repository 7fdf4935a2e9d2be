"""Runs for the tests of the worker's side: rows without a workflow, and executors that only move the row."""

import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from durable.core.records import ENDED, Batch, RunRecord, RunState
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.models import Run
from durable.store import Store
from tests.support.notifications import jobs

#: When the first of `stored_runs` was created.
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def new_runs(store: Store, count: int = 1, *, queue: str = "default", wake_at: datetime | None = None) -> list[str]:
    """Due runs, unless `wake_at` is later."""
    now = timezone.now()
    ids = [uuid.uuid4().hex for _ in range(count)]
    store.create(
        [
            RunRecord(id=each, workflow="tests.none", queue=queue, input="[]", created_at=now, wake_at=wake_at or now)
            for each in ids
        ]
    )
    return ids


def finish(record: RunRecord, store: Store) -> PassOutcome:
    """End the run, as the pass of a workflow that returns."""
    now = timezone.now()
    store.commit(
        Batch(
            run_id=record.id,
            fence=record.fence,
            now=now,
            run={
                "state": RunState.COMPLETED,
                "finished_at": now,
                "wake_at": None,
                "lease_expires_at": None,
                "worker": "",
            },
        )
    )
    return PassOutcome(state=RunState.COMPLETED)


def park(record: RunRecord, store: Store, wake_at: datetime | None) -> PassOutcome:
    """Park the run, as the pass of a workflow that sleeps; due now if `wake_at` is None."""
    now = timezone.now()
    store.commit(
        Batch(
            run_id=record.id,
            fence=record.fence,
            now=now,
            run={
                "state": RunState.SLEEPING if wake_at else RunState.PENDING,
                "wake_at": wake_at or now,
                "lease_expires_at": None,
                "worker": "",
            },
        )
    )
    return PassOutcome(state=RunState.SLEEPING, wake_at=wake_at or now, due_now=wake_at is None)


class Passes:
    """An executor that notes what it passes, and does `what` or ends the run.

    `begun` is set when the first pass begins; `release` lets passes go on that wait for it in `hold`.
    """

    def __init__(self, what: Callable[[RunRecord, Store, Eviction], PassOutcome] | None = None) -> None:
        self.what = what
        self.passed: list[str] = []
        self.begun = threading.Event()
        self.release = threading.Event()

    def __call__(self, record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        self.passed.append(record.id)
        self.begun.set()
        return self.what(record, store, eviction) if self.what is not None else finish(record, store)

    def hold(self, record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
        """A step that runs until it is released or evicted."""
        while not self.release.wait(0.01):
            if eviction.requested:
                return park(record, store, None)
        return finish(record, store)


def state(store: Store, run_id: str) -> RunRecord:
    run = store.get(run_id)
    assert run is not None
    return run


def assert_released(store: Store, ids: Iterable[str], queue: str = "default") -> None:
    """Assert that a stopped worker has released these due runs: claimable, uncrashed, and the queue notified once."""
    assert len(jobs(queue)) == 1
    now = timezone.now()
    due = store.claim(queue=queue, now=now, lease_until=now + timedelta(minutes=1), worker="next", limit=100)
    assert sorted(each.id for each in due) == sorted(ids)
    assert {each.crashes for each in due} == {0}


def stored_runs(count: int, state: str, workflow: str = "orders", minutes: int = 0) -> None:
    """Rows of runs that were created some minutes after NOW, each a millisecond after the one before."""
    moments = [NOW + timedelta(minutes=minutes, milliseconds=number) for number in range(count)]
    Run.objects.bulk_create(
        Run(
            id=f"{state}-{workflow}-{each:%M%S%f}",
            workflow=workflow,
            queue="q",
            input="[]",
            state=state,
            created_at=each,
            finished_at=each if state in ENDED else None,
        )
        for each in moments
    )
