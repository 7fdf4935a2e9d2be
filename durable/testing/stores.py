"""The stores of a harness: in memory, or in the test's database. Both count commits, and crash at the requested one.

Also keeps a test's transaction in order: rolls back to a savepoint inside it, and continues after a refused statement.
A worker instead closes a connection on which code has left a transaction open; a test's transaction would be lost with
its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.conf import conf
from durable.core.current import is_in_step, running_run
from durable.core.errors import OutsideStepError
from durable.core.records import ENDED, ActionRecord, Batch, Committed, EntryKind, EntryStatus, RunRecord, RunState
from durable.models import EntryMetadata, OperatorAction, Run
from durable.store import store_for
from durable.store.memory.transactional import TransactionalMemoryStore
from durable.store.transactions import committed_or_raised
from durable.testing.deaths import trials


def go_on_after_refusals() -> None:
    """Let the test continue to use its transactions after the guard has refused statements.

    Such a statement was not sent, but Django counts it as failed.
    """
    connection: Any  # the stubs lack rollback_exc
    for connection in connections.all(initialized_only=True):
        if connection.needs_rollback and isinstance(connection.rollback_exc, OutsideStepError):
            connection.needs_rollback = False
            connection.rollback_exc = None


def roll_back_inside(connection: BaseDatabaseWrapper, depth: int) -> None:
    """Roll back transactions begun within the innermost of the `depth` blocks, or mark that block for rollback.

    Changes Django's notes of blocks and savepoints itself: a timeout may have interrupted Django between any two lines,
    so the notes may be inconsistent, and Django's own way out of the blocks cannot be relied on.
    """
    left = connection.savepoint_ids[depth - 1 :]
    del connection.savepoint_ids[depth - 1 :]
    del connection.atomic_blocks[depth:]
    if not left or left[0] is None:
        connection.needs_rollback = True
        return
    connection.needs_rollback = False
    try:
        connection.savepoint_rollback(left[0])
        connection.savepoint_commit(left[0])
    except Error:
        connection.needs_rollback = True


When = Literal["before", "after"]


class SimulatedCrash(BaseException):
    """A simulated death of the process at a commit. A pass of the harness raises it where a test has requested it."""


class SimulatedDeath(SimulatedCrash):
    """A simulated death that the test did not request: its harness goes on as the next worker does."""


def harness_store(name: str, after_commit: Callable[[str], None]) -> Any:
    """Return a new store: "memory", or "database" for that of the settings. Raises ValueError for another name.

    `after_commit` is called with the run's id after each commit of a pass.
    """
    if name == "memory":
        return InMemoryStore(conf.DATABASE, after_commit)
    if name != "database":
        raise ValueError(f'the store of a harness is "memory" or "database", not "{name}"')
    kind = type(store_for(conf.DATABASE))
    return type("HarnessDatabase", (_InDatabase, kind), {})(conf.DATABASE, after_commit)


class _Crashing:
    """A mixin that counts the commits of the next class, a store, and crashes at the requested one."""

    def __init__(self, using: str, after_commit: Callable[[str], None] = lambda _run_id: None) -> None:
        super().__init__(using)  # type: ignore[call-arg]  # the next class is a store
        self.commits = 0
        self._after_commit = after_commit
        self._crash: tuple[int, When] | None = None
        self._death: tuple[int, When] | None = None
        self._is_in_transaction = False
        self._dies_after_transaction: type[SimulatedCrash] | None = None

    @property
    def _next(self) -> Any:
        """The methods of the next class."""
        return super()

    def arm(self, number: int, when: When) -> None:
        self._crash = (self.commits + number, when)

    def disarm(self) -> None:
        self._crash = None

    def arm_death(self, number: int, when: When) -> None:
        """Die at the `number`-th commit of this store (from 1)."""
        self._death = (number, when)

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        created: list[tuple[RunRecord, bool]] = self._next.create(runs)
        trials.note_starts(created)
        return created

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        started: tuple[RunRecord, bool] = self._next.start_keyed(run, key)
        trials.note_starts([started])
        return started

    def sent_commits(self) -> None:
        """Let each commit come through here."""

    def commit(self, batch: Batch) -> Committed:
        committed: Committed = self._counted(lambda: self._next.commit(batch))
        self._after_commit(batch.run_id)
        return committed

    def acquire(self, *args: Any) -> Any:
        return self._counted(lambda: self._next.acquire(*args))

    def reserve(self, *args: Any, **options: Any) -> Any:
        return self._counted(lambda: self._next.reserve(*args, **options))

    def close_rate(self, *args: Any, **options: Any) -> Any:
        return self._counted(lambda: self._next.close_rate(*args, **options))

    def _counted(self, write: Callable[[], Any]) -> Any:
        if (crash := self._requested("before")) is not None:
            raise crash
        committed = write()
        self.commits += 1
        if (crash := self._requested("after")) is not None:
            if not self._is_in_transaction:
                raise crash
            self._dies_after_transaction = crash  # that is when it is committed
        return committed

    def _requested(self, when: When) -> type[SimulatedCrash] | None:
        """Return, and forget, what is requested at this commit."""
        here = (self.commits + 1 if when == "before" else self.commits, when)
        if self._crash == here:
            self._crash = None
            return SimulatedCrash
        if self._death == here:
            self._death = None
            trials.die()
            return SimulatedDeath
        return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        is_around = self._is_in_transaction
        with self._next.transaction():
            self._is_in_transaction = True
            try:
                yield
            finally:
                self._is_in_transaction = is_around
        if self._dies_after_transaction is not None and not is_around:
            crash, self._dies_after_transaction = self._dies_after_transaction, None
            raise crash


class _WithRows(TransactionalMemoryStore):
    """The store in memory; an atomic step's transaction also contains the application's rows, a verb's does not."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        is_of_atomic_step = running_run() is not None and not is_in_step()
        rows = committed_or_raised(self.using) if is_of_atomic_step else nullcontext()
        with super().transaction(), rows:
            yield


class InMemoryStore(_Crashing, _WithRows):
    def expire_lease(self, run_id: str, now: datetime) -> None:
        with self._lock:
            run = self._runs[run_id]
            if run.state not in ENDED and run.state != RunState.PAUSED and run.lease_expires_at is not None:
                self._runs[run_id] = replace(run, lease_expires_at=now)

    def has_result(self, run_id: str, location: str) -> bool:
        with self._lock:
            entry = self._entries[run_id].get(location)
            return entry is not None and entry.kind == EntryKind.STEP and entry.status == EntryStatus.COMPLETED

    def queues(self) -> list[str]:
        with self._lock:
            return sorted({run.queue for run in self._runs.values()})


class _InDatabase(_Crashing):
    """The next class is the store of the database."""

    @property
    def actions(self) -> list[ActionRecord]:
        rows = OperatorAction.objects.using(conf.DATABASE).order_by("created_at", "id").values(*ActionRecord.__slots__)
        return [ActionRecord(**row) for row in rows]

    def expire_lease(self, run_id: str, now: datetime) -> None:
        runs = Run.objects.using(conf.DATABASE).open().exclude(state=RunState.PAUSED)
        runs.filter(pk=run_id, lease_expires_at__isnull=False).update(lease_expires_at=now)

    def has_result(self, run_id: str, location: str) -> bool:
        steps = EntryMetadata.objects.using(conf.DATABASE).filter(entry__run=run_id, entry__kind=EntryKind.STEP)
        return steps.filter(entry__location=location, status=EntryStatus.COMPLETED).exists()

    def queues(self) -> list[str]:
        return sorted(Run.objects.using(conf.DATABASE).order_by().values_list("queue", flat=True).distinct())
