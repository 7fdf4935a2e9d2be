"""At most one writer on real connections, whatever the clocks of the workers say."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from durable.core.control_flow import LeaseLost
from durable.core.records import Batch, EntryKind, EntryRecord, RunRecord
from durable.models import Entry
from durable.store import Store, store_for

START = datetime(2026, 1, 1, tzinfo=UTC)


class Skewed:
    """A worker in a thread of its own: its clock is wrong, and it goes on writing until it is refused."""

    def __init__(self, number: int, store: Store, seed: int) -> None:
        self.number = number
        self.store = store
        self.chance = random.Random(f"{seed} {number}")
        self.accepted: list[tuple[str, int, int]] = []  # run, fence, number of the write
        self.refused = 0
        self._writes = 0
        self._began = time.monotonic()

    def work(self, until: threading.Event, ready: threading.Barrier) -> None:
        try:
            ready.wait(120)
            while not until.is_set():
                # a thousandth of a second counts as 20, and each clock is wrong by up to two leases
                passed = (time.monotonic() - self._began) * 20_000
                now = START + timedelta(seconds=max(0.0, passed + self.chance.uniform(-60, 60)))
                for run in self.store.claim(
                    queue="q", now=now, lease_until=now + timedelta(seconds=30), worker=f"{self.number}", limit=2
                ):
                    self.write(run)
        finally:
            connections.close_all()

    def write(self, run: RunRecord) -> None:
        """A few commits, of both kinds that there are; some long after the lease."""
        for _ in range(self.chance.randint(1, 6)):
            self._writes += 1
            number = self.number * 1_000_000 + self._writes
            entry = EntryRecord(
                f"{run.id}-{number}", EntryKind.STEP, number, START, data={"fence": run.fence, "number": number}
            )
            patch = {"summary": f"{number}"} if self.chance.random() < 0.3 else None
            try:
                self.store.commit(
                    Batch(run_id=run.id, fence=run.fence, now=START, entries=[entry], run=patch)  # type: ignore[arg-type]
                )
            except LeaseLost:
                self.refused += 1
                return
            self.accepted.append((run.id, run.fence, number))


@pytest.fixture
def seed() -> int:
    found = random.randrange(1 << 30)
    print(f"seed {found}")
    return found


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_real_connections_with_wrong_clocks_only_the_newest_fence_writes(seed: int) -> None:
    """Rows of one run are written in the order of its row's lock; so, read in that order, fences never go back."""
    store = store_for("default")
    runs = ["a", "b", "c"]
    store.create(
        [RunRecord(id=run, workflow="w", queue="q", input="[]", created_at=START, wake_at=START) for run in runs]
    )
    workers = [Skewed(number, store, seed) for number in range(5)]
    until, ready = threading.Event(), threading.Barrier(len(workers) + 1)
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(worker.work, until, ready) for worker in workers]
        ready.wait(120)
        deadline = time.monotonic() + 90
        while sum(worker.refused for worker in workers) < 100 and time.monotonic() < deadline:
            until.wait(0.01)
        until.set()
        for future in futures:
            future.result(120)
    assert sum(worker.refused for worker in workers) >= 100, "they did not come into each other's way"
    accepted = {each for worker in workers for each in worker.accepted}
    written: set[tuple[str, int, int]] = set()
    for run in runs:
        data: list[Any] = list(Entry.objects.filter(run=run).order_by("id").values_list("data", flat=True))
        fences = [each["fence"] for each in data]
        assert fences == sorted(fences), f"an older fence wrote after a newer one of {run}"
        written.update((run, each["fence"], each["number"]) for each in data)
    assert written == accepted
