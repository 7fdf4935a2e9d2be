"""The RunExecutor: claim runs, execute their passes, release them.

Owns the way of one claimed run through a pass, and what follows from the pass's outcome. The caller decides which runs
to claim and in which order to execute them: `durable.worker.job` executes one after the other,
`durable.worker.concurrent` several at once. The methods may be called from any thread. They open and close only the
calling thread's database connections.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeVar

from django.db import Error

from durable.conf import conf
from durable.core import clock
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.errors import RunNotFoundError
from durable.core.records import Entry, RunChange, RunRecord
from durable.core.transitions import deferred
from durable.execution.connections import (
    SESSION_TROUBLE,
    close_connections,
    close_stale_connections,
    guarded_sessions,
    in_clean_context,
    worker_name,
)
from durable.execution.eviction import Eviction
from durable.execution.forks import Origin
from durable.execution.passes import PassOutcome
from durable.execution.queries import may_have_history
from durable.notifier import notify, redis_clients
from durable.store import Store
from durable.store.prefetched import prefetched
from durable.worker.claim_bounds import ClaimBounds, bounds
from durable.worker.leases import LeaseManager
from durable.worker.shutdown import ShutdownFlag

__all__ = ["JOB_TIME_LIMIT", "Execute", "RunExecutor"]

T = TypeVar("T")

logger = logging.getLogger("durable.worker")

JOB_TIME_LIMIT: Final = 5.0  # seconds after which a job claims no further runs
PREFETCH_MAX_ENTRIES: Final = 200  # most entries of a history that is loaded together with those of other runs
PREFETCH_MAX_BYTES: Final = 65_536  # most bytes of its payloads
RECHECK_AFTER: Final = 0.25  # seconds after which a claimed run is checked again before its pass begins
BACKOFF: Final = (0.1, 2.0)  # seconds between two tries while the database is unreachable: the first, the longest

_log_this = redis_clients.LogThrottle()


class Execute(Protocol):
    """The signature of `durable.execution.passes.execute_pass`."""

    def __call__(self, record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        """Execute one pass of a claimed run."""


class RunExecutor:
    """Claims runs, adds their leases to `supervisor`, and executes them with `execute` until `stop` is requested."""

    def __init__(
        self,
        *,
        store: Store,
        execute: Execute,
        supervisor: LeaseManager,
        stop: ShutdownFlag,
        bounds: ClaimBounds = bounds,
    ) -> None:
        self.store = store
        self.bounds = bounds
        self.execute_pass = execute
        self.leases = supervisor
        self.stop = stop
        self._lock = threading.Lock()
        self._abandoned: dict[str, float] = {}
        self._histories: dict[tuple[str, int], list[Entry]] = {}  # by run and fence, of runs claimed and not begun

    def claim(self, queue: str, limit: int, until: float) -> list[RunRecord] | None:
        """Claim up to `limit` due runs.

        Return None if the database was unreachable until the monotonic time `until`.
        """
        return self._retry_until("claim runs", lambda: self._claim_once(queue, limit), until)

    def _claim_once(self, queue: str, limit: int) -> list[RunRecord]:
        now, claimed_at = clock.now(), time.monotonic()
        since = self.bounds.since(queue, now)
        batch = self.store.claim(
            queues=[queue],
            now=now,
            lease_until=now + timedelta(seconds=conf.LEASE),
            worker=worker_name(),
            limit=limit,
            since=since,
        )
        self.bounds.note(queue, since, now, batch, limit)
        self.leases.add(batch, claimed_at)
        self._prefetch(batch)
        return batch

    def _prefetch(self, batch: Sequence[RunRecord]) -> None:
        """Load the short histories of the claimed runs in one round trip instead of one for each run.

        If that fails, each pass loads its own history, so that one unreadable history affects no other run.
        """
        known = [each.id for each in batch if may_have_history(each)]
        if len(known) < 2:
            return
        try:
            found = self.store.load_short(known, PREFETCH_MAX_ENTRIES, PREFETCH_MAX_BYTES)
        except SESSION_TROUBLE:
            close_connections()
            return
        except Exception:  # one unreadable history must end its own pass only, not fail all of the batch
            close_connections()
            logger.exception("the histories of %d runs cannot be loaded together", len(known))
            return
        with self._lock:
            kept = {held: history for held, history in self._histories.items() if self.leases.holds(*held)}
            self._histories = kept | {(each.id, each.fence): found[each.id] for each in batch if each.id in found}

    def _forget(self, records: Iterable[RunRecord]) -> None:
        with self._lock:
            for each in records:
                self._histories.pop((each.id, each.fence), None)

    def _store_for(self, record: RunRecord) -> Store:
        with self._lock:
            history = self._histories.pop((record.id, record.fence), None)
        return self.store if history is None else prefetched(self.store, record.id, history)

    def execute(self, record: RunRecord) -> None:
        """Execute the pass of a run, unless this worker no longer has its lease.

        Raises only what is not an Exception, KeyboardInterrupt for example.
        """
        eviction, store, origin = Eviction(), self._store_for(record), Origin(record.id)
        if self.leases.waited(record) >= RECHECK_AFTER:
            self._look_again(record)
        if not self.leases.pass_started(record, eviction):
            return
        about = {"run_id": record.id, "workflow": record.workflow}
        try:
            with guarded_sessions():
                outcome = in_clean_context(self.execute_pass, record, store=store, eviction=eviction)
        except LeaseLost:
            logger.info("run %s was taken over by another worker", record.id, extra=about)
        except (PassAborted, *SESSION_TROUBLE) as error:
            text = "the pass of run %s was cut short: %s: %s"
            logger.warning(text, record.id, type(error).__name__, error, extra=about)
            close_connections()
            if any(isinstance(each, SESSION_TROUBLE) for each in (error, error.__cause__)):
                self._abandon(record)
        except Exception:  # a fault of the engine: the worker must survive it, and must not spin
            text = "the pass of run %s failed; it is tried again when its lease runs out"
            logger.exception(text, record.id, extra=about)
            close_connections()
        else:
            self._announce(record, outcome)
        finally:
            origin.end_forked_child()
            self.leases.pass_ended(record)
            close_stale_connections(all_connections=False)

    def _look_again(self, record: RunRecord) -> None:
        """Renew the lease of a run that has waited, and read what was requested of the run meanwhile.

        The pass obeys the request before its first operation. A run whose lease is lost is dropped.
        """
        lease_until = clock.now() + timedelta(seconds=conf.LEASE)
        try:
            held = self.store.renew([(record.id, record.fence)], lease_until)
        except Error:  # the pass has to reach the database too, and reports it if that fails
            close_connections()
            return
        if record.id in held:
            record.pending_request = held[record.id]
        else:
            self.leases.drop([record])

    def _announce(self, record: RunRecord, outcome: PassOutcome) -> None:
        if outcome.wake_at is not None and not outcome.due_now:
            notify.notify_at(record.queue, outcome.wake_at)

    def _abandon(self, record: RunRecord) -> None:
        """Release a run whose pass a database failure ended, once the database answers.

        This happens at most once in `JOB_TIME_LIMIT` for each run. A run on which the database fails again waits until
        its lease expires, instead of spinning.
        """
        close_connections()
        now = time.monotonic()
        with self._lock:
            self._abandoned = {run_id: at for run_id, at in self._abandoned.items() if now - at < JOB_TIME_LIMIT}
            if record.id in self._abandoned:
                return
            self._abandoned[record.id] = now
        held = [(record.id, record.fence)]
        self._retry_until("hand back a run", lambda: self.store.release(held, clock.now()), now + JOB_TIME_LIMIT)
        self.bounds.include(record)
        notify.notify(record.queue)

    def release(self, records: Sequence[RunRecord]) -> None:
        """Release runs that were claimed, not begun, and dropped by the LeaseManager."""
        self._forget(records)
        if records:
            with _unless_away(records):
                self.store.release([(each.id, each.fence) for each in records], clock.now())
            for each in records:
                self.bounds.include(each)

    def defer(self, records: Sequence[RunRecord], seconds: float) -> None:
        """Release runs as `release` does, but due again only after `seconds`."""
        self._forget(records)
        due_at = clock.now() + timedelta(seconds=seconds)
        for record in records:
            with _unless_away([record]), suppress(RunNotFoundError):
                self.store.change(record.id, lambda run, _, held=record: _deferred(run, held, due_at))  # type: ignore[misc]
                notify.notify_at(record.queue, due_at)

    def _retry_until(self, what: str, command: Callable[[], T], until: float) -> T | None:
        """Call `command` until the database answers, and return its result.

        Return None if the database has not answered by the monotonic time `until`, or when a stop is requested.
        """
        pause, longest = BACKOFF
        while True:
            try:
                answer = command()
            except Error as error:
                close_connections()
                if _log_this(what):
                    logger.warning("cannot %s, trying again: %s: %s", what, type(error).__name__, error)
            else:
                if _log_this.clear(what):
                    logger.warning("the database answers again")
                return answer
            if self.stop.requested or time.monotonic() >= until:
                return None
            self._rest(pause)
            pause = min(pause * 2, longest)

    def _rest(self, seconds: float) -> None:
        """Sleep, unless a stop is requested."""
        woken: SimpleQueue[str] = SimpleQueue()
        self.stop.listen(woken)
        try:
            woken.get(timeout=seconds)
        except Empty:
            pass
        finally:
            self.stop.forget(woken)


def _deferred(run: RunRecord, held: RunRecord, due_at: datetime) -> RunChange:
    """Return the change that releases a run and makes it due later, if its lease is still the one of the claim."""
    if run.fence != held.fence or run.lease_expires_at is None:
        return RunChange(run={"change_seq": run.change_seq})
    return RunChange(run=deferred(run, wake_at=due_at))


@contextmanager
def _unless_away(records: Sequence[RunRecord]) -> Iterator[None]:
    """Log a database failure. The runs are due again when their leases expire."""
    try:
        yield
    except Error as error:
        close_connections()
        logger.warning("%d runs wait until their leases run out: %s", len(records), error)
