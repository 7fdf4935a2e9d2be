"""The LeaseManager: the owner of the runs that a worker has claimed, from the claim to the end of their passes.

Its thread renews their leases, gives up those that are lost, releases the runs that wait too long behind passes, and
turns a stop into evictions. Must not execute workflow code. The thread has a database connection of its own, opened
when it is first needed and closed when there are no leases.

Must not wait for a row's lock either: if a transaction keeps the row of one run locked (after a send to that run, for
example), all runs of the worker would lose their leases. Such a run is *busy*: the renewal of its lease is tried again
at each tick. No worker can claim it meanwhile, because claims skip locked rows. That holds too for a running atomic
step that has sent to its own run: its own transaction has locked the row, so no other worker can begin the run, however
late the lease. `durable.execution.commits` describes what the commit of such a step does about the lease.

A `Lease` is what the worker knows about one claimed run, and decides when a failed renewal means a loss. `Returns` are
the claimed runs that the worker gives back; they stay there until the database has taken them. Runs with locked rows
are tried again at each tick, and so are all runs after an outage. If nothing helps, they are due when their leases
expire, and a crash is counted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from django.db import Error

from durable.conf import conf
from durable.core import clock
from durable.core.current import is_running, running_steps, timed_step
from durable.core.errors import RunNotFoundError
from durable.core.records import RunRecord
from durable.drivers.loop_threads import left_behind
from durable.execution.connections import SESSION_TROUBLE, close_connections
from durable.execution.environment import LEASE_LOST, Eviction
from durable.notifier import notify, redis_clients
from durable.store import clocks
from durable.store.base import Store
from durable.store.transactions import RowsLocked
from durable.worker.activities import Activities, given_up
from durable.worker.claim_bounds import bounds
from durable.worker.overruns import Overruns
from durable.worker.presence import RETRY, Presence, ShutdownFlag
from durable.worker.scheduler import DEFERRAL, Scheduler
from durable.worker.unanswered import Statements, answered_within, watch_connections

logger = logging.getLogger("durable.worker")

# Seconds for which an ending worker keeps trying, and between two tries: most transactions lock a row for less.
LAST_TRIES: Final = 5.0
PAUSE: Final = 0.05

# Seconds between two ticks (less with a very short LEASE): half the time that a run may wait behind a pass. A steady
# tick rather than a call for each pass, because waking this thread would cost the pass its interpreter lock.
TICK: Final = 0.5
# Seconds after which a running step gets a row and learns of an operator's request, and between two such queries: one
# query a second for all long steps of a process, none for short ones.
LONG: Final = 1.0

_log_this = redis_clients.LogThrottle()


@dataclass(slots=True)
class Lease:
    """The lease of a claimed run: since when it is held, and when it was last renewed (both monotonic).

    `eviction` is None until the pass of the run begins. A pass may raise the fence of the record. `is_busy`: at the
    last renewal, another transaction had locked the run's row.
    """

    record: RunRecord
    since: float
    renewed_at: float
    eviction: Eviction | None = None
    is_busy: bool = False

    @property
    def fence(self) -> int:
        """The fence under which the lease is held."""
        return self.record.fence

    def is_lost_without(self, fence: int) -> bool:
        """Return True if a failed renewal under this fence means that the run is lost."""
        return self.fence == fence and not (self.eviction is not None and self.eviction.is_changing_fence)


class Returns:
    """Claimed runs to be given back before their passes began: due at once, or only after `DEFERRAL`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._released: list[RunRecord] = []
        self._deferred: list[RunRecord] = []

    def add(self, released: Sequence[RunRecord], deferred: Sequence[RunRecord] = ()) -> None:
        """Add runs to be released or deferred. The worker must have dropped them."""
        with self._lock:
            self._released += released
            self._deferred += deferred

    def send(self) -> bool:
        """Release all that can be released now. Return False if some are left. Raises the database's errors."""
        due_at = clock.now() + timedelta(seconds=DEFERRAL)
        with self._lock:
            released, self._released = self._released, []
            deferred, self._deferred = self._deferred, []
        try:
            released = self._sent(released, None)
            deferred = self._sent(deferred, due_at)
        finally:
            self.add(released, deferred)
        return not released and not deferred

    def try_to_send(self) -> None:
        """Do the same as `send`, but log a failure of the database."""
        try:
            self.send()
        except Error as error:
            self._tell(error)

    def finish(self) -> None:
        """Release the remaining runs before the process ends. Runs whose rows stay locked wait until their leases
        expire.
        """
        until = time.monotonic() + LAST_TRIES
        try:
            while not self.send() and time.monotonic() < until:
                time.sleep(PAUSE)
        except Error as error:
            self._tell(error)

    def _tell(self, error: Error) -> None:
        close_connections()
        left = len(self._released) + len(self._deferred)
        logger.warning("%d runs cannot be released now: %s: %s", left, type(error).__name__, error)

    def _sent(self, records: list[RunRecord], due_at: datetime | None) -> list[RunRecord]:
        """Release the runs. Return those whose rows are locked."""
        if not records:
            return []
        busy, queues = self._store.release([(each.id, each.fence) for each in records], clock.now(), due_at=due_at)
        if due_at is None:
            announce([each for each in records if each.id not in busy], queues)
        else:
            for queue in queues:
                notify.notify_at(queue, due_at)
        return [each for each in records if each.id in busy]


def announce(records: Iterable[RunRecord], queues: Iterable[str]) -> None:
    """Notify this process and others of the released runs in these queues."""
    for each in records:
        bounds.include(each)
    for queue in queues:
        notify.notify(queue)


class LeaseManager:
    """Keeps the leases of a worker's runs. A context manager: the thread lives as long as the `with` block.

    `scheduler` says which runs have waited too long. `pulse` is called at every tick, to report that the worker is
    alive and to receive commands. `presence` is this process's row in the table of workers.
    """

    def __init__(
        self,
        *,
        store: Store,
        stop: ShutdownFlag,
        scheduler: Scheduler,
        pulse: Callable[[], object] | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.pulse = pulse
        self._presence = presence
        self._store = store
        self._stop = stop
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        #: The runs that go back to other workers.
        self.returns = Returns(store)
        self._try_again_at = 0.0
        self._asked_at = -math.inf
        self._shown_at = -math.inf
        self._overruns = Overruns(stop.request)
        self._activities = Activities(store, self._give_up)
        self._statements = Statements()
        self._given_up: list[timed_step] = []
        self._calls: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="durable-leases", daemon=True)

    def __enter__(self) -> Self:
        self._stop.listen(self._calls)
        watch_connections()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.forget(self._calls)
        self._calls.put("end")
        self._thread.join()

    # -- called by the threads that execute the runs

    def add(self, records: Sequence[RunRecord], claimed_at: float) -> None:
        """Keep the leases of `records`, which were claimed at the monotonic time `claimed_at`."""
        now = time.monotonic()
        with self._lock:
            before = [self._leases[each.id] for each in records if each.id in self._leases]
            self._leases.update({each.id: Lease(each, since=now, renewed_at=claimed_at) for each in records})
        # their leases had expired by the database's clock but not by ours, or their passes have just ended
        self._lose(before)

    def waited(self, record: RunRecord) -> float:
        """Return how many seconds this worker has had the run's lease; 0 if it does not have it."""
        with self._lock:
            held = self._leases.get(record.id)
            return 0.0 if held is None else time.monotonic() - held.since

    def pass_started(self, record: RunRecord, eviction: Eviction) -> bool:
        """Record that the pass of `record` begins.

        Return False if it must not begin: the run is lost or a stop is requested.
        """
        with self._lock:
            held = self._leases.get(record.id)
            if held is None or held.fence != record.fence or self._stop.requested:
                return False
            held.eviction = eviction
            eviction.lease_ends_at = held.renewed_at + conf.LEASE
            return True

    def pass_ended(self, record: RunRecord) -> None:
        """Record that the pass of `record` is over, and stop renewing its lease."""
        with self._lock:
            held = self._leases.get(record.id)
            if held is not None and held.record is record:  # otherwise the run was due again and has been claimed anew
                del self._leases[record.id]

    def unstarted(self) -> list[RunRecord]:
        """Return the runs whose passes have not begun."""
        with self._lock:
            return [each.record for each in self._leases.values() if each.eviction is None]

    def holds(self, run_id: str, fence: int) -> bool:
        """Return True if this worker still has the lease under which the run was claimed."""
        with self._lock:
            held = self._leases.get(run_id)
            return held is not None and held.fence == fence

    def drop(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Remove and return those of `records` whose leases this worker still has and whose passes have not begun."""
        with self._lock:
            mine = [
                record
                for record in records
                if (held := self._leases.get(record.id)) is not None and held.record is record and held.eviction is None
            ]
            for record in mine:
                del self._leases[record.id]
        return mine

    def release(self, records: Sequence[RunRecord], to_defer: Sequence[RunRecord] = ()) -> None:
        """Release runs that will not begin here, so that other workers may claim them, and defer `to_defer`.

        Ignores runs whose leases this worker has lost or whose passes have begun. The thread later retries releases
        that fail now.
        """
        mine, off = self.drop(records), self.drop(to_defer)
        if mine or off:
            self.returns.add(mine, off)
            self.returns.try_to_send()

    # -- the thread

    def _run(self) -> None:
        try:
            with self._presence or nullcontext():
                while self._wait() != "end":
                    with answered_within(conf.LEASE * 2 / 3):  # leases are renewed when a third is over
                        self._tick()
                with answered_within(conf.LEASE):
                    self.returns.finish()
                    self._activities.clear()
        finally:
            close_connections()
        self._overruns.finish()

    def _wait(self) -> str:
        try:
            return self._calls.get(timeout=min(TICK, conf.LEASE / 10))
        except Empty:
            return ""

    def _tick(self) -> None:
        try:
            if self._stop.requested:
                self._evict("shutdown")
                self.returns.add(self.drop(self.unstarted()))
            else:
                late, suspects = self._scheduler.pop_expired()
                self.returns.add(self.drop(late), self.drop(suspects))
            self.returns.send()
            self._renew()
            self._report()
            self._show()
            self._statements.look()
            if not self._leases and self._activities.is_empty:
                close_connections()
            if (pulse := self.pulse) is not None:
                pulse()
            if self._presence is not None:
                self._presence.sign()
        except SESSION_TROUBLE as error:
            close_connections()
            self._try_again_at = time.monotonic() + RETRY
            self._give_up_expired()
            if _log_this("database"):
                logger.warning("leases cannot be renewed now, trying again: %s: %s", type(error).__name__, error)
        except Exception:  # the thread must survive every error: without it leases expire
            close_connections()
            self._try_again_at = time.monotonic() + RETRY
            if _log_this("tick"):
                logger.exception("the leases of the runs cannot be kept now, trying again")
        try:
            steps = [(each.info, each.since) for each in running_steps()]
            self._overruns.look(steps, self._occupied, self._hand_over, self._expire)
        except Exception:
            if _log_this("overruns"):
                logger.exception("steps that go on after their timeout cannot be looked for, trying again")

    def _evict(self, reason: str) -> None:
        with self._lock:
            begun = [each.eviction for each in self._leases.values() if each.eviction is not None]
        for eviction in begun:
            eviction.request(reason)

    def _renew(self) -> None:
        """Renew all leases once a third of the oldest is over, and those of busy runs at each tick; one statement."""
        now = time.monotonic()
        with self._lock:
            leases = list(self._leases.values())
            due = min((each.renewed_at for each in leases if not each.is_busy), default=math.inf) + conf.LEASE / 3
            held = [(each, each.fence) for each in leases if each.is_busy or now >= due]
        if not held or now < self._try_again_at:
            return
        clocks.look_if_set(conf.DATABASE)
        pairs = [(each.record.id, fence) for each, fence in held]
        kept, busy = self._store.renew(pairs, clock.now() + timedelta(seconds=conf.LEASE))
        lost = []
        with self._lock:
            for each, fence in held:
                each.is_busy = each.record.id in busy
                if each.record.id in kept:
                    each.renewed_at = now
                    if each.eviction is not None:
                        each.eviction.lease_ends_at = now + conf.LEASE
                elif not each.is_busy and each.is_lost_without(fence):
                    lost.append(each)
        _log_this.clear("database")
        self._note_requests(kept, kept)
        self._lose(lost)

    def _occupied(self) -> set[str]:
        """Return the ids of the runs whose passes are under way, including runs that were given up."""
        self._given_up = [each for each in self._given_up if is_running(each)]
        with self._lock:
            begun = {run_id for run_id, each in self._leases.items() if each.eviction is not None}
        return begun | {each.info.run_id for each in self._given_up}

    def _hand_over(self, run_ids: set[str]) -> None:
        """Release runs whose passes are under way, at the very end of this process. No crash is counted for them."""
        with self._lock:
            records = [each.record for run_id, each in self._leases.items() if run_id in run_ids]
        self.returns.add(records)
        self.returns.send()

    def _expire(self, run_ids: set[str]) -> None:
        """Let the leases of these runs expire now. The worker that claims them next counts a crash.

        Leases of rows locked by a step's own transaction expire by themselves.
        """
        with self._lock:
            pairs = [(run_id, each.fence) for run_id, each in self._leases.items() if run_id in run_ids]
        self._store.renew(pairs, clock.now())

    def _report(self) -> None:
        """Write the long-running steps, and read operators' requests for them. Short steps cost no statement."""
        now = time.monotonic()
        if now < max(self._asked_at + LONG, self._try_again_at):
            return
        running = running_steps()
        long = self._held([step for step in running if now - step.since >= LONG])
        left = left_behind()
        if not long and not left and self._activities.is_empty:
            return
        self._asked_at = now
        self._note_requests(self._activities.report(long), {step.info.run_id for step, _ in long})
        # the passes may wait for what they leave
        under_way = {(step.info.run_id, step.info.location) for step in running}
        self._activities.note_left(frozenset(each for each in left if (each.run_id, each.location) not in under_way))

    def _show(self) -> None:
        """Write the statuses of runs that no commit has written yet; one statement a second at most, none without
        any.
        """
        now = time.monotonic()
        if now < max(self._shown_at + LONG, self._try_again_at):
            return
        with self._lock:
            found = [
                (slot, each.fence)
                for each in self._leases.values()
                if each.eviction is not None and (slot := each.eviction.status) is not None
            ]
        taken = [(slot, status) for slot, fence in found if (status := slot.take(fence)) is not None]
        if not taken:
            return
        self._shown_at = now
        try:
            self._store.show([status for _, status in taken])
        except BaseException as error:
            for slot, status in taken:
                slot.put_back(status)
            if not isinstance(error, RowsLocked):
                raise

    def _held(self, steps: Iterable[timed_step]) -> list[tuple[timed_step, int]]:
        """Return those steps whose passes have their run's lease, each with its fence."""
        with self._lock:
            found = [(step, self._leases.get(step.info.run_id)) for step in steps]
            return [(step, lease.fence) for step, lease in found if lease is not None and step.is_of(lease.record)]

    def _give_up(self, step: timed_step, fence: int) -> bool:
        """Give a run up whose step continues although an operator has abandoned it. Its slot stays occupied.

        Return False if another transaction, for example one of the step itself, has locked the run's row.
        """
        with self._lock:
            lease = self._leases.get(step.info.run_id)
        if lease is None or lease.fence != fence:
            return True
        record, queue = lease.record, lease.record.queue
        beside = [each for each in running_steps() if each is not step and each.is_of(record)]
        with suppress(RunNotFoundError):
            try:
                run = self._store.change(
                    record.id, lambda run, entries: given_up(run, entries, step, beside, fence, clock.now()), wait=False
                )
            except RowsLocked:
                return False
            if run.fence == fence:
                return True  # the attempt has just ended, or the next look may find that a commit has
            queue = run.queue
        self._given_up += [step, *beside]
        self._lose([lease])
        announce([record], [queue])
        return True

    def _note_requests(self, requests: Mapping[str, str], run_ids: Iterable[str]) -> None:
        with self._lock:
            evictions = [(run_id, self._leases[run_id].eviction) for run_id in run_ids if run_id in self._leases]
        for run_id, eviction in evictions:
            if eviction is not None:
                eviction.asked = requests.get(run_id, "")

    def _give_up_expired(self) -> None:
        """Give up leases that were not renewed in time, because other workers may have claimed the runs."""
        expired_at = time.monotonic() - conf.LEASE
        with self._lock:
            lost = [each for each in self._leases.values() if each.renewed_at <= expired_at]
        self._lose(lost)

    def _lose(self, lost: Iterable[Lease]) -> None:
        for each in lost:
            if each.eviction is not None:
                each.eviction.request(LEASE_LOST)
            with self._lock:
                is_ours = self._leases.get(each.record.id) is each
                if is_ours:
                    del self._leases[each.record.id]
            if is_ours and each.eviction is not None:  # otherwise the pass ended during the query
                logger.warning("the lease of run %s was lost", each.record.id, extra={"run_id": each.record.id})
