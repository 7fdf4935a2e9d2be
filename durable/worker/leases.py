"""The LeaseManager: a thread that keeps the leases of a worker's runs while the worker executes passes.

Owns the leases of one QueueJob, or of all runs of a ConcurrentWorker. It renews the leases, gives up those that are
lost, releases runs that wait too long behind a pass, and turns a stop into evictions. It executes no workflow code. It
has a database connection of its own, opened when it is first needed and closed when the thread ends. While there are no
leases, the connection is closed when Django would close it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from redis.exceptions import RedisError
from rq.worker import BaseWorker

from durable.conf import conf
from durable.core import clock
from durable.core.current import timed_steps
from durable.core.records import RunRecord
from durable.execution.connections import SESSION_TROUBLE, close_connections, close_stale_connections
from durable.execution.eviction import LEASE_LOST, Eviction
from durable.notifier import notify, redis_clients
from durable.store.base import Store
from durable.worker.claim_bounds import bounds
from durable.worker.overruns import Overruns, Steps
from durable.worker.shutdown import ShutdownFlag

__all__ = ["LeaseManager"]

logger = logging.getLogger("durable.worker")

MAX_WAIT = 1.0  # seconds that claimed runs wait behind a pass before other workers get them
# seconds after which a running step is told of an operator's request; also the time between two such queries
LONG = 1.0
TICK = 0.5  # seconds between two ticks, which ask for example whether RQ's worker was told to stop
BEAT = 30.0  # seconds between two heartbeats for RQ
RETRY = 1.0  # seconds until the next try while the database is unreachable
MOST = 256  # threads, and so QueueJobs of one process at the same time

_log_this = redis_clients.LogThrottle()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Return a pool of threads that wait for the next QueueJob. A forked process gets a pool of its own.

    Starting a new thread for each job would make a message wait for it.
    """
    return ThreadPoolExecutor(MOST, thread_name_prefix="supervisor-of-durable")


@dataclass(slots=True)
class _Lease:
    """The lease of a claimed run: since when it is held, and when it was last renewed (both monotonic).

    `eviction` is None until the pass of the run begins. A pass may raise the fence of the record.
    """

    record: RunRecord
    since: float
    renewed_at: float
    eviction: Eviction | None = None

    @property
    def fence(self) -> int:
        """The fence under which the lease is held."""
        return self.record.fence

    def is_lost_without(self, fence: int) -> bool:
        """Return True if a lease that could not be renewed under this fence means that the run is lost."""
        return self.fence == fence and not (self.eviction is not None and self.eviction.is_changing_fence)


class LeaseManager:
    """Keeps the leases of a worker's runs. A context manager: the thread lives as long as the `with` block.

    `asks` tells where to ask whether RQ wants this worker to shut down: a queue, whose Redis has the answer, and the
    name of RQ's worker; None where a signal tells. Runs that wait behind a pass are released after `MAX_WAIT`, unless
    the caller does that (`sees_to_waiting`).
    """

    def __init__(
        self, *, store: Store, stop: ShutdownFlag, asks: tuple[str, str] | None = None, sees_to_waiting: bool = False
    ) -> None:
        self._store = store
        self._stop = stop
        self._asks = asks
        self._sees_to_waiting = sees_to_waiting
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._returning: list[RunRecord] = []
        self._try_again_at = 0.0
        self._beaten_at = time.monotonic()
        self._asked_at = -math.inf
        self._overruns = Overruns(stop.request)
        self._calls: SimpleQueue[str] = SimpleQueue()
        self._ended: Future[None] | None = None

    def __enter__(self) -> Self:
        self._stop.listen(self._calls)
        self._ended = _threads(os.getpid()).submit(self._run)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.forget(self._calls)
        self._calls.put("end")
        if self._ended is not None:
            self._ended.exception()  # waits for the thread, which has logged its own errors

    # -- called by the threads that execute the runs

    def add(self, records: Sequence[RunRecord], claimed_at: float) -> None:
        """Keep the leases of `records`, which were claimed at the monotonic time `claimed_at`."""
        now = time.monotonic()
        with self._lock:
            before = [self._leases[each.id] for each in records if each.id in self._leases]
            self._leases.update({each.id: _Lease(each, since=now, renewed_at=claimed_at) for each in records})
        # their leases had expired by the database's clock, if not by ours, or their passes have just ended
        self._lose(before)

    def waited(self, record: RunRecord) -> float:
        """Return for how many seconds this worker has had the run's lease; 0 if it has not."""
        with self._lock:
            held = self._leases.get(record.id)
            return 0.0 if held is None else time.monotonic() - held.since

    def pass_started(self, record: RunRecord, eviction: Eviction) -> bool:
        """Note that the pass of `record` begins.

        Return False if it must not: the run is lost or a stop is requested.
        """
        with self._lock:
            held = self._leases.get(record.id)
            if held is None or held.fence != record.fence or self._stop.requested:
                return False
            held.eviction = eviction
            eviction.lease_ends_at = held.renewed_at + conf.LEASE
            return True

    def pass_ended(self, record: RunRecord) -> None:
        """Note that the pass of `record` is over, and stop renewing its lease."""
        with self._lock:
            held = self._leases.get(record.id)
            if held is not None and held.record is record:  # otherwise the run was due again and has been claimed anew
                del self._leases[record.id]

    def pop_unstarted(self, besides: RunRecord | None = None) -> list[RunRecord]:
        """Remove and return the runs whose passes have not begun, except `besides`. The caller releases them."""
        with self._lock:
            waiting = [
                each.record for each in self._leases.values() if each.eviction is None and each.record is not besides
            ]
            for record in waiting:
                del self._leases[record.id]
        return waiting

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

    # -- the thread

    def _run(self) -> None:
        try:
            while self._wait() != "end":
                self._tick()
        finally:
            close_connections()

    def _wait(self) -> str:
        # A steady tick rather than a call for each pass: waking this thread costs the pass its interpreter lock.
        try:
            return self._calls.get(timeout=min(TICK, conf.LEASE / 10))
        except Empty:
            return ""

    def _tick(self) -> None:
        try:
            self._look_for_shutdown()
            if self._stop.requested:
                self._evict("shutdown")
                self._returning += self.pop_unstarted()
            elif self._is_held_up():
                self._returning += self.pop_unstarted()
            self._release()
            self._renew()
            self._ask_for(timed_steps())
            self._beat()
            if not self._leases:
                close_stale_connections(all_connections=True)
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
                logger.exception("the supervisor failed, trying again")
        try:
            self._overruns.look(timed_steps(), self._begun, self._expire)
        except Exception:
            if _log_this("overruns"):
                logger.exception("the supervisor cannot look for steps that go on after their timeout, trying again")

    def _evict(self, reason: str) -> None:
        with self._lock:
            begun = [each.eviction for each in self._leases.values() if each.eviction is not None]
        for eviction in begun:
            eviction.request(reason)

    def _is_held_up(self) -> bool:
        """Return True if runs of the batch have waited longer than `MAX_WAIT` behind those before them."""
        if self._sees_to_waiting:
            return False
        with self._lock:
            waiting = [each.since for each in self._leases.values() if each.eviction is None]
            return 0 < len(waiting) < len(self._leases) and time.monotonic() - min(waiting) >= MAX_WAIT

    def _release(self) -> None:
        if not self._returning:
            return
        self._store.release([(each.id, each.fence) for each in self._returning], clock.now())
        for each in self._returning:
            bounds.include(each)
        queues = {each.queue for each in self._returning}
        self._returning = []
        for queue in queues:
            notify.notify(queue)

    def _renew(self) -> None:
        with self._lock:
            held = [(each, each.fence) for each in self._leases.values()]
            due = min((each.renewed_at for each, _ in held), default=math.inf) + conf.LEASE / 3
        now = time.monotonic()
        if now < max(due, self._try_again_at):
            return
        pairs = [(each.record.id, fence) for each, fence in held]
        kept = self._store.renew(pairs, clock.now() + timedelta(seconds=conf.LEASE))
        lost = []
        with self._lock:
            for each, fence in held:
                if each.record.id in kept:
                    each.renewed_at = now
                    if each.eviction is not None:
                        each.eviction.lease_ends_at = now + conf.LEASE
                elif each.is_lost_without(fence):
                    lost.append(each)
        _log_this.clear("database")
        self._note_requests(kept, kept)
        self._lose(lost)

    def _begun(self) -> set[str]:
        """Return the ids of the runs whose passes are under way."""
        with self._lock:
            return {run_id for run_id, each in self._leases.items() if each.eviction is not None}

    def _expire(self, run_ids: set[str]) -> None:
        """Let the leases of these runs expire now. The worker that claims them next counts a crash."""
        with self._lock:
            pairs = [(run_id, each.fence) for run_id, each in self._leases.items() if run_id in run_ids]
        self._store.renew(pairs, clock.now())

    def _ask_for(self, steps: Steps) -> None:
        """Tell long-running steps what operators have requested of their runs. Short steps cost no query."""
        now = time.monotonic()
        if now < max(self._asked_at + LONG, self._try_again_at):
            return
        long = {step.run_id for step, since in steps if now - since >= LONG} & self._begun()
        if not long:
            return
        self._asked_at = now
        self._note_requests(self._store.requests(sorted(long)), long)

    def _note_requests(self, requests: Mapping[str, str], run_ids: Iterable[str]) -> None:
        with self._lock:
            evictions = [(run_id, self._leases[run_id].eviction) for run_id in run_ids if run_id in self._leases]
        for run_id, eviction in evictions:
            if eviction is not None:
                eviction.asked = requests.get(run_id, "")

    def _give_up_expired(self) -> None:
        """Give up leases that were not renewed in time: another worker may have claimed the runs by now."""
        expired_at = time.monotonic() - conf.LEASE
        with self._lock:
            lost = [each for each in self._leases.values() if each.renewed_at <= expired_at]
        self._lose(lost)

    def _lose(self, lost: Iterable[_Lease]) -> None:
        for each in lost:
            if each.eviction is not None:
                each.eviction.request(LEASE_LOST)
            with self._lock:
                is_ours = self._leases.get(each.record.id) is each
                if is_ours:
                    del self._leases[each.record.id]
            if is_ours and each.eviction is not None:  # otherwise the pass ended while we asked
                logger.warning("the lease of run %s was lost", each.record.id, extra={"run_id": each.record.id})

    # -- RQ

    def _look_for_shutdown(self) -> None:
        """Ask Redis whether RQ wants this worker to shut down.

        A forked work horse gets no signal; RQ notes it in Redis.
        """
        if self._asks is None or self._stop.reachable or self._stop.requested:
            return
        queue, rq_worker = self._asks
        with contextlib.suppress(RedisError):  # nothing depends on the answer: the job ends by itself soon
            redis = redis_clients.client(queue)
            key = f"{BaseWorker.redis_worker_namespace_prefix}{rq_worker}"
            if redis.hget(key, "shutdown_requested_date") is not None:
                self._stop.request()

    def _beat(self) -> None:
        beat = self._stop.beat
        if beat is None or time.monotonic() - self._beaten_at < BEAT:
            return
        self._beaten_at = time.monotonic()
        with contextlib.suppress(RedisError):  # RQ's records decide nothing
            beat()
