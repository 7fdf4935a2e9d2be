"""The difference between this process's clock and the database's: workers' clocks decide leases and deadlines."""

from __future__ import annotations

from typing import Final

from django.db import connections

from durable.conf import conf
from durable.core import clock

CLOCK_TOLERANCE: Final = 2.0  # seconds of a difference that need no report


def clock_difference() -> float | None:
    """Return how many seconds this clock is ahead of the database's (below 0: behind), less the time of the query.

    None if the database is not a server with its own clock. Database errors propagate.
    """
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    before = clock.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [there] = cursor.fetchone()
    after = clock.now()
    if before <= there <= after:
        return 0.0
    nearest = before if there < before else after
    return float((nearest - there).total_seconds())
