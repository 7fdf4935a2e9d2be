"""What stands behind a faulty store: the runs in memory, or those of the default database within a test's transaction.

Both answer the questions that a harness asks of its own store, and let a test take leases away.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from durable.core.records import ENDED, Batch, Committed, EntryKind, EntryStatus, RunState
from durable.models import Entry, Run
from durable.store import store_for
from durable.testing.stores import InMemoryStore


class MemoryWorld(InMemoryStore):
    """The store of a harness, with leases to take away."""

    def __init__(self) -> None:
        super().__init__("default")

    def leased(self) -> list[str]:
        """The runs that a worker holds."""
        with self._lock:
            return [run.id for run in self._runs.values() if run.lease_expires_at is not None]

    def forget_lease(self, run_id: str) -> None:
        """No worker holds the run, and no crash is counted."""
        with self._lock:
            self._runs[run_id].lease_expires_at = None


class DatabaseWorld:
    """The production store, with what a harness's store has beside it."""

    def __init__(self) -> None:
        self.inner = store_for("default")
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def sent_commits(self) -> None:
        """No event loop commits past this store."""

    def commit(self, batch: Batch) -> Committed:
        """Commit, and count it."""
        committed = self.inner.commit(batch)
        self.commits += 1
        return committed

    def transaction(self) -> AbstractContextManager[None]:
        """The store's own."""
        return self.inner.transaction()

    def leased(self) -> list[str]:
        """The runs that a worker holds."""
        return list(Run.objects.filter(lease_expires_at__isnull=False).values_list("pk", flat=True))

    def forget_lease(self, run_id: str) -> None:
        """No worker holds the run, and no crash is counted."""
        Run.objects.filter(pk=run_id).update(lease_expires_at=None)

    def expire_lease(self, run_id: str, now: datetime) -> None:
        """The worker is gone, and its lease has run out."""
        held = Run.objects.filter(pk=run_id, lease_expires_at__isnull=False)
        held.exclude(state__in=[*ENDED, RunState.PAUSED]).update(lease_expires_at=now)

    def has_result(self, run_id: str, location: str) -> bool:
        """Whether this step's result is recorded."""
        found = Entry.objects.filter(run=run_id, location=location, kind=EntryKind.STEP)
        return found.filter(metadata__status=EntryStatus.COMPLETED).exists()

    def queues(self) -> list[str]:
        """The queues of all runs."""
        return sorted(set(Run.objects.values_list("queue", flat=True)))
