"""How far this process's clock is from the database's: leases and deadlines are kept by workers' clocks."""

from __future__ import annotations

from typing import Final

from django.db import connections

from durable.conf import conf
from durable.core import clock

__all__ = ["CLOCK_TOLERANCE", "clock_difference"]

CLOCK_TOLERANCE: Final = 2.0  # seconds of a difference that nobody need know of


def clock_difference() -> float | None:
    """Seconds that this clock is ahead of the database's (below 0: behind), less what the question took.

    None where there is no server with a clock of its own. Raises what a database does.
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
