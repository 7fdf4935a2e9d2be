"""Moments: the present one, and those that come from outside as databases can keep them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["BEYOND", "now", "to_utc"]

BEYOND: Final = "In UTC this is before the year 1 or after the year 9999."


def now() -> datetime:
    """The present moment, aware whatever the settings say. Django's function asks them each time, which takes longer."""
    return datetime.now(UTC)


def to_utc(moment: datetime) -> datetime:
    """The aware moment in UTC, in which each database keeps it. Raises ValueError for one that UTC has no date for."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(BEYOND) from None
