"""The current time, and the bounds of times: databases keep them in UTC, and people see them in any zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

_followed: tuple[datetime, float] | None = None

#: Stand for times outside of Python's range. Both have a date in every time zone.
EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

BEYOND: Final = "In UTC this is before the year 1 or after the year 9999."


def now() -> datetime:
    """Return the current time, aware, whatever the settings.

    Faster than Django's function, which reads the settings each time. If the process follows the database's clock
    (`durable.store.clocks`), it is the database's time.
    """
    if _followed is None:
        return datetime.now(UTC)
    moment, counted_from = _followed
    return moment + timedelta(seconds=time.monotonic() - counted_from)


def follow(told: tuple[datetime, float] | None) -> bool:
    """Take the time from another clock, given its moment and the monotonic time of the reading; None stops that.

    Return True if the process has changed from its own clock to the other one, or back.
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
    """Return the aware `moment`; EARLIEST or LATEST if UTC has no date for it."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return LATEST if moment.year > 1 else EARLIEST
    return moment
