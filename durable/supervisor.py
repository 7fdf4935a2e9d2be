"""The supervisor: it keeps, in a thread of its own, what a worker holds while the worker is busy with a pass.

Owns the leases of one shift: renews them, gives up those that are lost, hands back runs that wait too long behind a
pass, and turns a stop into evictions. Runs no workflow code. It has a database connection of its own, opened when it
is first needed and closed when it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Protocol, Self

from django.utils import timezone
from redis.exceptions import RedisError

from durable import bell, redis_client
from durable.conf import conf
from durable.core.entries import RunRecord
from durable.process import DATABASE_TROUBLE, close_connections
from durable.stopping import Stop
from durable.store.base import Store

__all__ = ["Evictable", "Supervisor"]

logger = logging.getLogger("durable.worker")

PATIENCE = 1.0  # seconds that claimed runs wait behind a pass before other workers get them
TICK = 0.5  # seconds between two looks, at whether RQ's worker was told to stop for example
BEAT = 30.0  # seconds between two signs of life for RQ
RETRY = 1.0  # seconds until the next try while the database is away
MOST = 256  # threads, and so shifts of one process at the same time

_log_this = redis_client.Seldom()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Threads that wait for the next shift: starting one anew would make a message wait for it. After a fork, others."""
    return ThreadPoolExecutor(MOST, thread_name_prefix="supervisor-of-durable")


class Evictable(Protocol):
    """The part of `durable.passes.Eviction` that the supervisor uses."""

    lease_ends_at: float
    is_changing_fence: bool

    def request(self, reason: str) -> None:
        """End the pass at its next operation."""


@dataclass(slots=True)
class _Held:
    """A claimed run. `eviction` is None until its pass begins, which may raise the fence of the record."""

    record: RunRecord
    eviction: Evictable | None = None

    @property
    def fence(self) -> int:
        """The one under which the lease is held."""
        return self.record.fence

    def is_lost_without(self, fence: int) -> bool:
        """Whether the run is lost if its lease is not to be had under this fence."""
        return self.fence == fence and not (self.eviction is not None and self.eviction.is_changing_fence)


class Supervisor:
    """Watches over the runs that a shift holds. A context manager: the thread lives as long as the block.

    `rq_worker` is the name of the RQ worker whose shutdown request is polled, "" for none.
    """

    def __init__(self, queue: str, *, store: Store, stop: Stop, rq_worker: str = "") -> None:
        self.queue = queue
        self._store = store
        self._stop = stop
        self._rq_worker = rq_worker
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._returning: list[tuple[str, int]] = []
        self._held_since = 0.0
        self._renewed_at = 0.0
        self._renew_at = 0.0
        self._beaten_at = time.monotonic()
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
            self._ended.exception()  # waits; the thread has told of its own faults

    # -- called by the shift

    def hold(self, records: Sequence[RunRecord], claimed_at: float) -> None:
        """Take care of the leases of `records`, claimed at the monotonic time `claimed_at`."""
        with self._lock:
            self._held.update({each.id: _Held(each) for each in records})
            self._held_since = time.monotonic()
            self._renewed_at = claimed_at
            self._renew_at = claimed_at + conf.LEASE / 3

    def begin(self, record: RunRecord, eviction: Evictable) -> bool:
        """The pass of `record` begins. False: it must not, the run is no longer ours or we are to stop."""
        with self._lock:
            held = self._held.get(record.id)
            if held is None or held.fence != record.fence or self._stop.requested:
                return False
            held.eviction = eviction
            eviction.lease_ends_at = self._renewed_at + conf.LEASE
            return True

    def end(self, record: RunRecord) -> None:
        """The pass of `record` is over; its lease is no longer our business."""
        with self._lock:
            self._held.pop(record.id, None)

    def waiting(self, besides: RunRecord | None = None) -> list[tuple[str, int]]:
        """Take the runs whose pass has not begun, `besides` one, out of our care, for the caller to hand back."""
        kept = besides.id if besides is not None else None
        with self._lock:
            waiting = [
                (run_id, each.fence) for run_id, each in self._held.items() if each.eviction is None and run_id != kept
            ]
            for run_id, _ in waiting:
                del self._held[run_id]
        return waiting

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
                self._evict("shutdown", self._begun())
                self._returning += self.waiting()
            elif self._is_held_up():
                self._returning += self.waiting()
            self._hand_back()
            self._renew()
            self._beat()
        except DATABASE_TROUBLE as error:
            close_connections()
            self._renew_at = max(self._renew_at, time.monotonic() + RETRY)
            self._give_up_expired()
            if _log_this("database"):
                logger.warning("leases cannot be renewed now, trying again: %s: %s", type(error).__name__, error)
        except Exception:  # the thread must outlive whatever it meets: without it leases run out
            self._renew_at = max(self._renew_at, time.monotonic() + RETRY)
            if _log_this("tick"):
                logger.exception("the supervisor failed, trying again")

    def _begun(self) -> list[str]:
        with self._lock:
            return [run_id for run_id, each in self._held.items() if each.eviction is not None]

    def _is_held_up(self) -> bool:
        """Whether runs of the batch have waited longer than our patience behind those before them."""
        with self._lock:
            begun = sum(each.eviction is not None for each in self._held.values())
            return 0 < begun < len(self._held) and time.monotonic() - self._held_since >= PATIENCE

    def _hand_back(self) -> None:
        if not self._returning:
            return
        self._store.release(self._returning, timezone.now())
        self._returning = []
        bell.ring(self.queue)

    def _renew(self) -> None:
        with self._lock:
            held = [(run_id, each.fence) for run_id, each in self._held.items()]
        now = time.monotonic()
        if not held or now < self._renew_at:
            return
        kept = self._store.renew(held, timezone.now() + timedelta(seconds=conf.LEASE))
        with self._lock:
            self._renewed_at, self._renew_at = now, now + conf.LEASE / 3
            for run_id in kept:
                each = self._held.get(run_id)
                if each is not None and each.eviction is not None:
                    each.eviction.lease_ends_at = now + conf.LEASE
            missing = [(run_id, fence, self._held.get(run_id)) for run_id, fence in held if run_id not in kept]
            lost = [run_id for run_id, fence, each in missing if each is None or each.is_lost_without(fence)]
        _log_this.again("database")
        self._lose(lost)

    def _give_up_expired(self) -> None:
        """Without a renewal in time any worker may have taken the runs by now."""
        if self._held and time.monotonic() - self._renewed_at >= conf.LEASE:
            with self._lock:
                lost = list(self._held)
            self._lose(lost)

    def _lose(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._evict("lease lost", [run_id])
            with self._lock:
                lost = self._held.pop(run_id, None)
            if lost is not None and lost.eviction is not None:  # else the pass ended while we asked
                logger.warning("the lease of run %s was lost", run_id, extra={"run_id": run_id})

    def _evict(self, reason: str, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            with self._lock:
                held = self._held.get(run_id)
            if held is not None and held.eviction is not None:
                held.eviction.request(reason)

    # -- RQ

    def _look_for_shutdown(self) -> None:
        """A forked work horse gets no signal when its worker is told to stop; RQ notes the request in Redis."""
        if not self._rq_worker or self._stop.reachable or self._stop.requested:
            return
        with contextlib.suppress(RedisError):  # nothing depends on it: the shift ends by itself soon
            redis = redis_client.client(self.queue)
            if redis.hget(f"rq:worker:{self._rq_worker}", "shutdown_requested_date") is not None:
                self._stop.request()

    def _beat(self) -> None:
        if self._stop.beat is None or time.monotonic() - self._beaten_at < BEAT:
            return
        self._beaten_at = time.monotonic()
        with contextlib.suppress(RedisError):  # RQ's records decide nothing
            self._stop.beat()
