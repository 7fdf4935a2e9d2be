"""A store whose calls fail where a test says, and a harness whose worker lives with that.

A *fault* strikes one call of the store, counted from the moment it is armed:

- `before`: the call raises, and has no effect;
- `after`: it has its effect, and raises: the answer is lost;
- `late`: it hangs past the lease, another worker passes the run, then it has its effect;
- `slow`: it has its effect, and its answer comes after another worker has passed the run.

What raises is what Django raises when a connection breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from django.db import OperationalError

from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.records import ENDED, Batch, Committed, EntryKind, EntryStatus, RunRecord, RunState
from durable.execution.environment import LEASE_LOST, Eviction
from durable.execution.passes import execute_pass
from durable.handles import Handle
from durable.models import Entry, Run
from durable.store import store_for
from durable.testing import Harness, Pass
from durable.testing.stores import InMemoryStore

T = TypeVar("T")
How = Literal["before", "after", "late", "slow"]
HOWS: Final[tuple[How, ...]] = ("before", "after", "late", "slow")
LEASE: Final = timedelta(seconds=30)
TRIES: Final = 20

#: What may fail: what the engine, the worker and the verbs ask of a store. A harness's own questions are left alone.
CALLS: Final = frozenset(
    [
        "create",
        "get",
        "history",
        "attempts",
        "messages",
        "send",
        "message",
        "change",
        "claim",
        "claim_run",
        "load",
        "inbox",
        "commit",
        "renew",
        "release",
        "next_deadline",
        "due_queues",
    ]
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`how` the call with this number (from 1) fails."""

    call: int
    how: How

    def __str__(self) -> str:
        return f"{self.how} call {self.call}"


class FaultyStore:
    """`inner`, but for its faults."""

    def __init__(self, inner: Any, hang: Callable[[], None]) -> None:
        self.inner = inner
        self.hang = hang
        self.calls: list[str] = []
        self.struck: list[str] = []
        self._faults: dict[int, How] = {}
        self._in_transaction = False
        self._is_quiet = False
        #: Leave alone what is asked from outside of passes: the verbs, and the test itself.
        self.only_passes = False
        self._passing = 0

    def arm(self, faults: Sequence[Fault]) -> None:
        """Count from here on, and fail there."""
        self.calls.clear()
        self._faults = {fault.call: fault.how for fault in faults}

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Neither count nor fail: the call is not the pass's."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A worker claims and passes runs."""
        self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._striking(name, found) if name in CALLS else found

    def _striking(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def strike(*args: Any, **kwargs: Any) -> Any:
            how = self._next(name)
            if how == "late":
                self.hang()
            if how == "before":
                raise OperationalError(f"injected before {name}")
            outer, self._in_transaction = self._in_transaction, self._in_transaction or name == "change"
            try:  # what decides a change may ask the store, inside the change's own transaction
                answer = call(*args, **kwargs)
            finally:
                self._in_transaction = outer
            if how == "slow":
                self.hang()
            if how == "after":
                raise OperationalError(f"injected after {name}")
            return answer

        return strike

    def _next(self, name: str) -> How | None:
        if self._is_quiet or (self.only_passes and not self._passing):
            return None
        self.calls.append(name)
        how = self._faults.get(len(self.calls))
        if how in ("late", "slow") and self._in_transaction:
            return None  # the other worker would share this one's transaction here: see test_zombie for that
        if how is not None:
            self.struck.append(f"{how} {name}")
        return how

    @contextmanager
    def transaction(self) -> Iterator[None]:
        how = self._next("transaction")
        if how == "late":
            self.hang()
        if how == "before":
            raise OperationalError("injected before BEGIN")
        outer, self._in_transaction = self._in_transaction, True
        try:
            with self.inner.transaction():
                yield
        finally:
            self._in_transaction = outer
        if how == "slow":
            self.hang()
        if how == "after":
            raise OperationalError("injected after COMMIT")


class FaultyHarness(Harness):
    """A harness whose store may fail, and whose worker does then what a real one does.

    `store` stands in for the harness's own; it needs what `FaultyStore` passes through of a harness's store. With
    `counts_crashes=False` a lost claim is not counted as a crash, so that several faults do not add up to one.
    """

    def __init__(self, now: datetime, *, store: Any = None, counts_crashes: bool = True) -> None:
        super().__init__(now, short_sleep=0, strict=False)  # it executes passes by itself
        self.inner: Any = store or self._store
        self.faulty = FaultyStore(self.inner, self._hang)
        self._store: Any = self.faulty
        self._runtime = replace(self._runtime, store=self.faulty)
        self._counts_crashes = counts_crashes
        self._evictions: list[tuple[RunRecord, Eviction]] = []
        #: Called when all that is not committed is lost for good.
        self.on_loss: Callable[[], None] = lambda: None

    def run(self, run_id: str | Handle) -> Pass:
        """One pass, and another one wherever a fault ended it."""
        name = run_id if isinstance(run_id, str) else run_id.id
        with self.faulty.passing():
            for _ in range(TRIES):
                try:
                    claimed = self._store.claim_run(name, now=self._now, lease_until=self._now + LEASE, worker="faulty")
                except OperationalError:
                    self._lose_lease(name)
                    continue
                if claimed is None or self._passed(claimed):
                    break
        with self.faulty.quiet():
            return self.peek(name)

    def run_due(self) -> int:
        """One pass of every due run; a claim that is not answered is made again."""
        with self.faulty.passing():
            return self._run_due()

    def _run_due(self) -> int:
        with self.faulty.quiet():
            queues = self._store.due_queues(self._now)
        try:
            due = [
                run
                for each in queues
                for run in self._store.claim(
                    queue=each, now=self._now, lease_until=self._now + LEASE, worker="faulty", limit=100
                )
            ]
        except OperationalError:
            for each in self.inner.leased():
                self._lose_lease(each)
            return 1
        for claimed in due:
            self._passed(claimed)
        return len(due)

    def finish(self, run_id: str | Handle) -> Pass:
        """Advance to each deadline until the run has ended."""
        return persistently(lambda: super(FaultyHarness, self).finish(run_id))

    def settle(self) -> None:
        """Passes until nothing is due at this moment."""
        persistently(super().settle)

    def _passed(self, claimed: RunRecord) -> bool:
        """Pass the run; whether the pass ended as passes do, here or at the worker that took over."""
        eviction = Eviction()
        self._evictions.append((claimed, eviction))
        try:
            execute_pass(claimed, store=self._store, eviction=eviction, at=self._runtime)
        except LeaseLost:
            return True
        except (PassAborted, OperationalError):
            self.on_loss()
            self._hand_back(claimed)
            return False
        finally:
            self._evictions.pop()
        return True

    def _hand_back(self, claimed: RunRecord) -> None:
        try:
            self._store.release([(claimed.id, claimed.fence)], self._now)
        except OperationalError:
            self._lose_lease(claimed.id)
        if claimed.id in self.inner.leased():  # under a fence that the pass has not heard of: the lease runs out
            self._lose_lease(claimed.id)

    def _lose_lease(self, run_id: str) -> None:
        self.inner.expire_lease(run_id, self._now)
        if not self._counts_crashes:
            self.inner.forget_lease(run_id)

    def _hang(self) -> None:
        """The leases run out, and another worker passes the run; this one finds out by its LeaseManager."""
        if not self._evictions:  # the worker hangs in a claim: it has nothing that could be taken from it
            return
        claimed, eviction = self._evictions[-1]
        eviction.request(LEASE_LOST)
        self.on_loss()
        self._lose_lease(claimed.id)
        with self.faulty.quiet():
            taken = self.inner.claim_run(
                claimed.id, now=self._now, lease_until=self._now + LEASE, worker="the other one"
            )
            if taken is not None:
                execute_pass(taken, store=self._store, eviction=Eviction(), at=self._runtime)


def persistently(call: Callable[[], T]) -> T:
    """The answer of a call that is made until it is answered, as a web request's or an operator's would be."""
    for _ in range(TRIES):
        try:
            return call()
        except OperationalError:
            continue
    raise AssertionError("the store never answered")


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
