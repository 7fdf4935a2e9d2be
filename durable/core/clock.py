"""The current time, and the bounds of times: databases keep them in UTC, and people see them in any zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

_followed: tuple[datetime, float] | None = None

#: What stands for a time that Python cannot hold. Each zone has a date for them.
EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

BEYOND: Final = "In UTC this is before the year 1 or after the year 9999."


def now() -> datetime:
    """Return the current time, aware under any settings.

    Django's function reads the settings each time, which takes longer. In a process whose clock is wrong, it is the
    database's time, if the process follows that (`durable.store.clocks`).
    """
    if _followed is None:
        return datetime.now(UTC)
    moment, counted_from = _followed
    return moment + timedelta(seconds=time.monotonic() - counted_from)


def follow(told: tuple[datetime, float] | None) -> bool:
    """Count from a moment that another clock has told at this monotonic time; with None, go by the process's own clock.

    Return whether the process has followed the other one before, if it does not now, or the reverse.
    """
    global _followed
    is_new = (told is None) != (_followed is None)
    _followed = told
    return is_new


def to_utc(moment: datetime) -> datetime:
    """Return the aware `moment` in UTC. Raises ValueError if UTC has no date for it."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(BEYOND) from None


def bounded(moment: datetime) -> datetime:
    """Return the aware `moment`, or EARLIEST or LATEST if UTC has no date for it."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return LATEST if moment.year > 1 else EARLIEST
    return moment
