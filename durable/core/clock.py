"""The current time, and the conversion of given times to UTC, in which databases keep them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["BEYOND", "now", "to_utc"]

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
