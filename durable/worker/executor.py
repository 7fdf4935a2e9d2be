"""The RunExecutor: claim runs and execute their passes.

Owns the way of one claimed run through a pass, and the reaction to the pass's outcome. `durable.worker.loop` decides
how many runs to claim and in which order to execute them, and the LeaseManager has their leases. The methods may be
called from any thread. They open and close only the calling thread's database connections.

Also notes runs with long histories, so that the process of the sweep counts them (`durable.inspection.history_counts`)
before an operator opens their page. A lost note costs the first view of the page some tenths of a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, cast

from django.db import Error, connections

from durable import marks
from durable.conf import conf
from durable.core import clock
from durable.core.control_flow import CommitsLost, LeaseLost, PassAborted
from durable.core.records import ActionRecord, RunRecord
from durable.core.time_limits import History
from durable.core.witnesses import LOST_COMMITS
from durable.execution.connections import (
    SESSION_TROUBLE,
    Origin,
    close_connections,
    close_stale_connections,
    guarded_sessions,
    in_clean_context,
    worker_name,
)
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.execution.queries import may_have_history
from durable.models import HistoryCount
from durable.notifier import notify, redis_clients
from durable.operations import ends
from durable.store import Store, clocks
from durable.store.base import ChildRefused
from durable.store.sessions import driver_connection
from durable.worker import presence
from durable.worker.claim_bounds import ClaimBounds, bounds
from durable.worker.leases import LeaseManager
from durable.worker.presence import ShutdownFlag

logger = logging.getLogger("durable.worker")

T = TypeVar("T")

# Seconds after which a job claims no further runs: how long the runs of another queue may wait for this worker.
JOB_TIME_LIMIT: Final = 5.0
# Most entries of a history that is loaded together with those of other runs, and most bytes of its payloads. A longer
# history takes longer to load than the round trip that is saved, and its pass may never begin here.
PREFETCH_MAX_ENTRIES: Final = 200
PREFETCH_MAX_BYTES: Final = 65_536
# Seconds after which a claimed run is checked again before its pass begins. In less time few verbs can be called, and
# the pass's first commit notices them anyway.
RECHECK_AFTER: Final = 0.25
# Seconds between two tries while the database is unreachable: the first is short, because a pooled connection may have
# broken; so is the longest, because a failover takes seconds.
BACKOFF: Final = (0.1, 2.0)

_log_this = redis_clients.LogThrottle()

#: Seconds for which a look is good in a session that leads to one server, and in any other session.
AGAIN: Final = 15.0
SHORT: Final = 1.0
_MADE: Final = "_durable_looked"  # the attribute of Django's connection: its session, and until when the look is good

_log_closed = redis_clients.LogThrottle(60.0)


def prefetched(store: Store, run_id: str, history: History) -> Store:
    """Return `store` for one pass of the run, whose history was `history` when it was claimed.

    A later change from outside is noticed by the row's `change_seq`, as if the pass had begun at the claim.
    """
    return cast("Store", _Preloaded(store, run_id, history))


class _Preloaded:
    """A store that answers the first load of a run's history from one that was loaded with those of other runs."""

    def __init__(self, store: Store, run_id: str, history: History) -> None:
        self._store = store
        self._histories = {run_id: history}

    def load(self, run_id: str) -> History:
        """Return the prefetched history the first time, and then the store's."""
        history = self._histories.pop(run_id, None)
        return self._store.load(run_id) if history is None else history

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(self._store, name)
        return value


def note(run_id: str) -> None:
    """Note that a pass of a run with a long history has ended; one statement.

    Raises no database errors.
    """
    row = HistoryCount(run_id=run_id, noted_at=clock.now())
    try:
        HistoryCount.objects.using(conf.DATABASE).bulk_create(
            [row], update_conflicts=True, unique_fields=["run"], update_fields=["noted_at"]
        )
    except Error as error:
        close_connections()
        logger.info("the long history of run %s is not noted: %s", run_id, error, extra={"run_id": run_id})


def may_claim() -> bool:
    """Return True if this process may claim runs by the session of this thread. Raises the database's errors.

    Nothing is claimed in a database that has gone back in time (`durable.marks.look`). A process looks before its first
    claim, before the first claim of each new session, and then now and then. A PostgreSQL session leads to one server,
    and a server does not go back while it runs. So a look is good for as long as its session, but for `AGAIN` at most:
    another server with the same name may be in use meanwhile. A pooler may lead each statement of a session to another
    server, and a file of SQLite may be replaced while it is open: there a look is good for `SHORT`.

    A place of the mark that does not answer prevents no claim: Redis decides nothing. The process compares with what it
    has seen itself meanwhile.
    """
    connection: Any = connections[conf.DATABASE]
    connection.close_if_health_check_failed()  # otherwise the claim's statement would, and open a session of its own
    session, until = vars(connection).get(_MADE, (None, 0.0))
    raw = driver_connection(connection)
    if raw is not None and raw is session and time.monotonic() < until:
        return True
    looked_at = time.monotonic()
    position = marks.look()
    if not position.may_claim:
        if _log_closed("closed"):
            logger.error(
                "no run is claimed: %s. Decide with `manage.py durable restored`; this worker goes on by itself then",
                position.in_words(),
            )
        return False
    if _log_closed.clear("closed"):
        logger.warning("runs are claimed again: it was decided about the database that went back in time")
    raw = driver_connection(connection)
    is_direct = position.session is not None and position.session == raw.pgconn.backend_pid
    vars(connection)[_MADE] = (raw, looked_at + (AGAIN if is_direct else SHORT))
    return True


def look_again() -> None:
    """Let this thread look before its next claim."""
    vars(connections[conf.DATABASE]).pop(_MADE, None)


class Execute(Protocol):
    """The signature of `durable.execution.passes.execute_pass`."""

    def __call__(self, record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        """Execute one pass of a claimed run."""


class RunExecutor:
    """Claims runs, adds their leases to `leases`, and executes them with `execute` until `stop` is requested.

    With `learns_names`, it reads renamed operations and the database's clock before the first claim, and records which
    workflows have an `on_end`. It then claims nothing in a database that has gone back in time (`may_claim`).
    """

    def __init__(
        self,
        *,
        store: Store,
        execute: Execute,
        leases: LeaseManager,
        stop: ShutdownFlag,
        bounds: ClaimBounds = bounds,
        learns_names: bool = False,
    ) -> None:
        self.store = store
        self.bounds = bounds
        self.execute_pass = execute
        self.leases = leases
        self.stop = stop
        self._lock = threading.Lock()
        self._learns_names = self._is_gated = learns_names
        self._abandoned: dict[str, float] = {}
        self._histories: dict[tuple[str, int], History] = {}  # by run and fence, of runs claimed and not begun

    def claim(self, queue: str, limit: int, until: float) -> list[RunRecord] | None:
        """Claim up to `limit` due runs.

        Return None if the database was unreachable until the monotonic time `until`.
        """
        return self._retry_until("claim runs", lambda: self._claim_once(queue, limit), until)

    def _claim_once(self, queue: str, limit: int) -> list[RunRecord]:
        if self._learns_names:
            clocks.look(conf.DATABASE, now=True)
            self.store.learn_names()
            ends.declare(self.store)
            self._learns_names = False
        if self._is_gated:
            clocks.look_if_set(conf.DATABASE)
            if not may_claim():
                return []
        now, claimed_at = clock.now(), time.monotonic()
        since = self.bounds.since(queue, now)
        batch = self.store.claim(
            queue=queue,
            now=now,
            lease_until=now + timedelta(seconds=conf.LEASE),
            worker=worker_name(),
            limit=limit,
            since=since,
            since_ranked=None if since is None else self.bounds.since_ranked(queue, now),
        )
        if not batch.is_paused:
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

    def _store_for(self, record: RunRecord) -> Store:
        with self._lock:
            history = self._histories.pop((record.id, record.fence), None)
        return self.store if history is None else prefetched(self.store, record.id, history)

    def execute(self, record: RunRecord) -> bool:
        """Execute the pass of a run, unless a stop is requested or this worker no longer has the run's lease.

        Return True if the end of the pass has made runs of the same queue due, and no worker was notified of them.
        Raises only BaseExceptions that are not Exceptions, such as KeyboardInterrupt.
        """
        if self.stop.requested:
            return False
        eviction, store, origin = Eviction(), self._store_for(record), Origin(record.id)
        if self.leases.waited(record) >= RECHECK_AFTER:
            self._look_again(record)
        if not self.leases.pass_started(record, eviction):
            return False
        if record.crashes:
            presence.note_takeover(record, self.store)
        about = {"run_id": record.id, "workflow": record.workflow}
        try:
            with guarded_sessions():
                outcome = in_clean_context(self.execute_pass, record, store=store, eviction=eviction)
        except CommitsLost:
            close_connections()
            look_again()
            self._return_after_loss(record)
        except LeaseLost:
            self._tell_of_loss(record, about)
        except (PassAborted, *SESSION_TROUBLE) as error:
            _log_cut_short(error, about)
            close_connections()
            if any(isinstance(each, (*SESSION_TROUBLE, ChildRefused)) for each in (error, error.__cause__)):
                self._abandon(record)
        except Exception:  # a fault of the engine: the worker must survive it, and must not spin
            text = "the pass of run %s failed; it is tried again when its lease runs out"
            logger.exception(text, record.id, extra=about)
            close_connections()
        else:
            return self._announce(record, outcome)
        finally:
            origin.end_forked_child()
            self.leases.pass_ended(record)
            close_stale_connections(all_connections=False)
        return False

    def _look_again(self, record: RunRecord) -> None:
        """Renew the lease of a run that has waited, and read requests made meanwhile.

        The pass obeys them before its first operation. A run whose lease is lost is dropped.
        """
        lease_until = clock.now() + timedelta(seconds=conf.LEASE)
        try:
            kept, busy = self.store.renew([(record.id, record.fence)], lease_until)
        except Error:  # the pass has to reach the database too, and reports it if that fails
            close_connections()
            return
        if record.id in kept:
            record.pending_request = kept[record.id]
        elif record.id not in busy:  # a busy one may begin: its first commit waits for the lock and checks the fence
            self.leases.drop([record])

    def _tell_of_loss(self, record: RunRecord, about: Mapping[str, str]) -> None:
        """Log that another worker has the run, or that the run is gone; nothing in durable deletes an open run."""
        try:
            is_gone = self.store.get(record.id) is None
        except Error:
            close_connections()
            is_gone = False
        if is_gone:
            text = (
                "run %s is gone, and this worker had it: its row was deleted by hand, or the database has lost its start "
                "because a standby that lagged was promoted, or a backup was restored"
            )
            logger.warning(text, record.id, extra=about)
        else:
            logger.info("run %s was taken over by another worker", record.id, extra=about)

    def _announce(self, record: RunRecord, outcome: PassOutcome) -> bool:
        """Notify other queues of their due runs. Return True if runs of this queue are due."""
        if outcome.wake_at is not None and not outcome.due_now:
            notify.notify_at(record.queue, outcome.wake_at)
        for queue in outcome.queues_to_notify - {record.queue}:
            notify.notify(queue)
        if outcome.is_long and not outcome.due_now:
            note(record.id)
        return record.queue in outcome.queues_to_notify

    def _abandon(self, record: RunRecord) -> None:
        """Release a run once the database answers, because a database failure ended its pass, or another start took a
        child's id.

        This happens at most once in `JOB_TIME_LIMIT` for each run. If the database fails again, the run waits until its
        lease expires, instead of being retried in a tight loop.
        """
        close_connections()
        if not self._note_abandoned(record):
            return
        self.leases.returns.add([record])
        self._retry_until("release a run", self.leases.returns.send, time.monotonic() + JOB_TIME_LIMIT)

    def _note_abandoned(self, record: RunRecord) -> bool:
        """Record that a run is released before the end of its pass. Return False if that has just happened before."""
        now = time.monotonic()
        with self._lock:
            self._abandoned = {run_id: at for run_id, at in self._abandoned.items() if now - at < JOB_TIME_LIMIT}
            if record.id in self._abandoned:
                return False
            self._abandoned[record.id] = now
        return True

    def _return_after_loss(self, record: RunRecord) -> None:
        """Release a run for which the database has lost commits, and log that for operators.

        It is due at once; if the same has just happened before, a little later.
        """
        is_first = self._note_abandoned(record)
        self.leases.returns.add([record] if is_first else [], [] if is_first else [record])
        until = time.monotonic() + JOB_TIME_LIMIT
        self._retry_until("release a run", self.leases.returns.send, until)
        self._retry_until("note that commits are lost", lambda: self._log_loss(record), until)

    def _log_loss(self, record: RunRecord) -> None:
        note = ActionRecord(
            action=LOST_COMMITS,
            run_id=record.id,
            source="code",
            outcome="done",
            created_at=clock.now(),
            actor_label=f"the worker {worker_name()}",
            detail=f"the database has lost commits of run {record.id} that it had answered; what is missing is done again",
        )
        with self.store.transaction():
            self.store.log([note, replace(note, run_id="")])  # the second one is what findings look for

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
            self.stop.wait(pause)
            pause = min(pause * 2, longest)


def _log_cut_short(error: BaseException, about: Mapping[str, str]) -> None:
    """Log a pass that ended without an outcome: as an error with its traceback, unless an outage explains it."""
    cause = error.__cause__ if isinstance(error, PassAborted) else error
    is_expected = cause is None or isinstance(cause, (Error, ChildRefused, PassAborted))
    text = "the pass of run %s was cut short: %s: %s"
    arguments = (about["run_id"], type(error).__name__, error)
    if is_expected:
        logger.warning(text, *arguments, extra=about)
    else:
        logger.error(text, *arguments, exc_info=error, extra=about)
