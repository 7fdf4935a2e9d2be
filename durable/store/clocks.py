"""The database's clock: a worker whose own clock is wrong follows it.

Owns the comparison of the two. Moments of the engine are computed in its processes: when a lease ends, when a run is
due, when a schedule ticks, when an attempt may begin. A worker whose clock is ahead would take running runs from
others, and delay by minutes what others may begin. So the processes of workers and timers compare their clock with the
database's at their start, every `EVERY` seconds, and as soon as their own was set. As long as the two differ by more
than `TOLERANCE`, `durable.core.clock` counts from the database's time.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connections

from durable.core import clock

logger = logging.getLogger("durable.worker")

EVERY: Final = 15.0  # seconds
#: A smaller difference does no harm: leases last much longer.
TOLERANCE: Final = timedelta(seconds=1)

_ASKED: Final = "SELECT clock_timestamp()"
_next_at = 0.0  # monotonic
_distance = 0.0  # seconds from the monotonic clock to this process's own, at the last comparison


def look(alias: str, *, now: bool = False) -> None:
    """Compare this process's clock with that of the database `alias`, if the last comparison was long ago, if the clock
    was set since, or `now`.

    One statement; none on a database without a clock of its own. Raises the database's errors.
    """
    global _next_at, _distance
    is_due = now or time.monotonic() >= _next_at or _was_set()
    if not is_due or connections[alias].vendor != "postgresql":
        return
    before = datetime.now(UTC)
    with connections[alias].cursor() as cursor:
        cursor.execute(_ASKED)
        [there] = cursor.fetchone()
    after, counted_from = datetime.now(UTC), time.monotonic()
    _next_at, _distance = counted_from + EVERY, after.timestamp() - counted_from
    ahead = max(before - there, timedelta()) - max(there - after, timedelta())
    if abs(ahead) <= TOLERANCE:
        if clock.follow(None):
            logger.warning("the clock of this process agrees with the database's again")
    elif clock.follow((there, counted_from)):
        seconds, way = abs(ahead).total_seconds(), "ahead of" if ahead > timedelta() else "behind"
        text = (
            "the clock of this process is %.1f s %s the database's, which counts: set the clock of this machine right"
        )
        logger.warning(text, seconds, way)


def look_if_set(alias: str) -> None:
    """Compare the clocks only if this process's was set since the last comparison. Raises the database's errors."""
    if _was_set():
        look(alias, now=True)


def _was_set() -> bool:
    """Return True if this process's clock has jumped since the last comparison, as it does after a suspension too."""
    return abs(datetime.now(UTC).timestamp() - time.monotonic() - _distance) > TOLERANCE.total_seconds()
