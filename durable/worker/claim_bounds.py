"""Lower bounds of claims: where in the order of due runs a process begins to look for them.

Owns these bounds, one for each queue of the process; must not touch the database. An old snapshot (a dump, an idle
transaction, a replica's feedback) keeps PostgreSQL from removing index entries of ended runs at the oldest end of the
index of due runs. A claim that begins at that end passes over two index entries for each ended run. So a process that
passed over many entries begins its next claims where the last one ended. It searches from the start again

- after a pause that is a multiple of the cost of such a search, so that full searches take a twentieth of its time at
  most;
- after a sweep's interval in any case;
- at once when a sweep asks for it (`durable.notifier.notify`); the sweep finds runs anywhere in the order.

A run that becomes due with a `wake_at` before the bound is found by the next full search. A start in a long
transaction, a clock that is behind and an expired lease are such cases. Where a full search is cheap, as while vacuum
does its work, every claim does one. The idea of a lower bound comes from "Postgres Job Queues & Failure By MVCC"
(brandur.org) and from PgQ's ticks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from durable.conf import conf
from durable.core.records import RunRecord
from durable.store.base import Claimed, DuePoint

CHEAP: Final = 500  # passed-over entries that do not matter
ENTRY_COST: Final = 1e-6  # seconds for each passed-over entry
REST: Final = 20  # pause until the next full search, as a multiple of the duration of one
#: Starts commit in another order than their times, and clocks differ a little: claims begin this much earlier.
MARGIN: Final = timedelta(seconds=0.25)
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Queue:
    """Where the next claim of a queue begins.

    `point` is where the last claim ended, `ranked` the same for runs with a rank. `all_at` is when to search from the
    start again (monotonic).
    """

    point: DuePoint
    ranked: datetime
    all_at: float


class ClaimBounds:
    """The lower bounds of one process, by queue. Safe to use from several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}

    def since(self, queue: str, now: datetime) -> DuePoint | None:
        """Return where a claim at `now` begins, or None to search from the start."""
        with self._lock:
            known = self._queues.get(queue)
            if known is None or self._clock() >= known.all_at:
                return None
            # the margin counts from now: a clock that was set back does not leave the point in the future
            return min(known.point, (now - MARGIN, ""))

    def since_ranked(self, queue: str, now: datetime) -> datetime:
        """Return where a claim at `now`, which begins at `since`, begins for runs with a rank."""
        with self._lock:
            known = self._queues.get(queue)
            return _BEGINNING if known is None else min(known.ranked, now - MARGIN)

    def note(self, queue: str, since: DuePoint | None, now: datetime, claimed: Claimed, limit: int) -> None:
        """Record the result of a claim at `now` that began at `since` and asked for `limit` runs."""
        ended = [(run.wake_at, run.id) for run in claimed if run.wake_at is not None]
        point = max(ended) if len(claimed) >= limit and ended else (now - MARGIN, "")
        if claimed.left is not None:  # runs that are due later may have been claimed first
            point = min(claimed.left, (now - MARGIN, ""))
        ranked = now - MARGIN if claimed.left_ranked is None else min(claimed.left_ranked, now - MARGIN)
        with self._lock:
            if since is None:
                cost = ENTRY_COST * claimed.passed_over if claimed.passed_over > CHEAP else 0.0
                self._queues[queue] = _Queue(point, ranked, self._clock() + min(REST * cost, conf.SWEEP_INTERVAL))
            elif (known := self._queues.get(queue)) is not None:
                known.point, known.ranked = point, ranked

    def include(self, run: RunRecord) -> None:
        """Lower the bound so that the next claim finds this run, which was claimed and is released."""
        if run.wake_at is None:
            return
        with self._lock:
            if (known := self._queues.get(run.queue)) is not None:
                known.point = min(known.point, (run.wake_at, run.id))
                known.ranked = min(known.ranked, run.wake_at)

    def forget(self, queue: str) -> None:
        """Search from the start at the next claim, because a sweep asks for it."""
        with self._lock:
            self._queues.pop(queue, None)

    def clear(self) -> None:
        self._queues = {}


#: The bounds of this process.
bounds: Final = ClaimBounds()
os.register_at_fork(after_in_child=bounds.clear)
