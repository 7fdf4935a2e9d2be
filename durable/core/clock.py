"""The current time, and the bounds of times: databases keep them in UTC, and people see them in any zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["BEYOND", "EARLIEST", "LATEST", "bounded", "now", "to_utc"]

#: What stands for a time that Python cannot hold. Each zone has a date for them.
EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

BEYOND: Final = "In UTC this is before the year 1 or after the year 9999."


def now() -> datetime:
    """Return the current time, aware under any settings.

    Django's function reads the settings each time, which takes longer.
    """
    return datetime.now(UTC)


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
