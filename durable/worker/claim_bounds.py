"""Where in the order of due runs a process begins to look for them.

An old snapshot (a dump, an idle transaction, a replica's feedback) keeps PostgreSQL from forgetting what ended runs leave behind
at the oldest end of the index of due runs: a claim that begins there passes over two entries for each of them. So a
process that had to pass over many begins its next claims where the last one ended, and looks at all again

- after a rest that is a multiple of what such a look costs, so that these looks take a twentieth of its time at most;
- after a sweep's interval in any case;
- at once when a sweep asks for it (`durable.notifier.notify`), which finds runs wherever they are in the order.

A run that becomes due with a `wake_at` behind that point (a start in a long transaction, a clock that is behind, a lease
that ran out) is found by the next of these. Where looking at all is cheap, as it is while vacuum does its work, every claim
does it. The idea of a lower bound is that of "Postgres Job Queues & Failure By MVCC" (brandur.org), and of PgQ's ticks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable.conf import conf
from durable.core.records import RunRecord
from durable.store.base import Claimed, DuePoint

__all__ = ["ClaimBounds", "bounds"]

CHEAP: Final = 500  # entries passed over that do not matter
ENTRY_COST: Final = 1e-6  # seconds for each
REST: Final = 20  # times as long as a look at all takes, until the next
#: Commits of starts come in another order than their moments, and clocks differ by a little: claims begin so much earlier.
MARGIN: Final = timedelta(seconds=0.25)


@dataclass(slots=True)
class _Queue:
    """`point` is where the last claim ended, `all_at` when to look at all again (monotonic)."""

    point: DuePoint
    all_at: float


class ClaimBounds:
    """The bounds of one process, by queue. Safe to use from several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}

    def since(self, queue: str, now: datetime) -> DuePoint | None:
        """Where a claim at `now` begins; None to look at all."""
        with self._lock:
            known = self._queues.get(queue)
            if known is None or self._clock() >= known.all_at:
                return None
            # the margin is reckoned from now: a clock that was set back does not leave the point in the future
            return min(known.point, (now - MARGIN, ""))

    def note(self, queue: str, since: DuePoint | None, now: datetime, claimed: Claimed, limit: int) -> None:
        """A claim at `now` that began at `since`, and was to find `limit` runs, has found these."""
        ended = [(run.wake_at, run.id) for run in claimed if run.wake_at is not None]
        point = max(ended) if len(claimed) >= limit and ended else (now - MARGIN, "")
        with self._lock:
            if since is None:
                cost = ENTRY_COST * claimed.passed_over if claimed.passed_over > CHEAP else 0.0
                self._queues[queue] = _Queue(point, self._clock() + min(REST * cost, conf.SWEEP_INTERVAL))
            elif (known := self._queues.get(queue)) is not None:
                known.point = point

    def include(self, run: RunRecord) -> None:
        """Begin no later than at this run, which was claimed and is handed back."""
        if run.wake_at is None:
            return
        with self._lock:
            if (known := self._queues.get(run.queue)) is not None:
                known.point = min(known.point, (run.wake_at, run.id))

    def forget(self, queue: str) -> None:
        """Look at all the next time: a sweep asks for it."""
        with self._lock:
            self._queues.pop(queue, None)

    def clear(self) -> None:
        """Forget all."""
        self._queues = {}


#: Those of this process.
bounds: Final = ClaimBounds()
os.register_at_fork(after_in_child=bounds.clear)
