"""Durations and times as users write them: seconds, timedelta, text such as "1 day 2 minutes"."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from durable.core.clock import to_utc
from durable.core.numbers import is_number

Duration = int | float | timedelta | str

_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*(?:,|\band\b)?", re.IGNORECASE)


def parse_duration(value: Duration, what: str = "a duration") -> timedelta:
    """Return `value` as a timedelta.

    Raises TypeError for another type; ValueError for a negative, infinite or unreadable one.
    """
    duration = parse_length(value, what)
    if duration < timedelta(0):
        raise ValueError(f"{what} must not be negative: {value!r}")
    return duration


def parse_remaining(value: Duration, what: str = "a duration") -> timedelta:
    """Return `value` as the timedelta to wait. A negative one counts as zero: `deadline - now` may be negative after an
    outage.

    Raises TypeError for another type; ValueError for an infinite or unreadable one.
    """
    return max(parse_length(value, what), timedelta(0))


def parse_length(value: Duration, what: str = "a length of time") -> timedelta:
    """Return `value` as a timedelta, which may be negative.

    Raises TypeError for another type; ValueError for an infinite or unreadable one.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return _parse_text(value, what)
    if is_number(value):
        return _from_seconds(value, what)
    raise TypeError(f'{what} is given in seconds, as a timedelta or as text such as "3 hours", not {value!r}')


def seconds(value: Duration, what: str = "a duration") -> float:
    """Return `value` in seconds; raises as `parse_duration` does."""
    return parse_duration(value, what).total_seconds()


def later(moment: datetime, duration: timedelta, what: str) -> datetime:
    """Return the time after `duration`. Raises ValueError past the year 9999."""
    try:
        return moment + duration
    except OverflowError:
        raise ValueError(f"{what} of {duration} ends after the year 9999: choose a shorter one") from None


def check_moment(moment: datetime, what: str = "a moment") -> datetime:
    """Return `moment` if it is an aware datetime for which UTC has a date; else raise TypeError or ValueError."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} is an aware datetime, not {moment!r}")
    if moment.utcoffset() is None:
        raise ValueError(
            f"{what} must be an aware datetime, {moment!r} has no time zone: use django.utils.timezone.now() or "
            "datetime(..., tzinfo=UTC)"
        )
    try:
        to_utc(moment)
    except ValueError as error:
        raise ValueError(f"{what} cannot be kept: {moment.isoformat()}. {error}") from None
    return moment


def _from_seconds(value: float, what: str) -> timedelta:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} must be finite: {value!r}")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError(f"{what} is too long: {value!r} s; at most 999,999,999 days are allowed") from None


def _parse_text(text: str, what: str) -> timedelta:
    total = 0.0
    position = 0
    stripped = text.strip()
    is_negative = stripped.startswith("-")
    stripped = stripped.removeprefix("-")
    while position < len(stripped):
        match = _PART.match(stripped, position)
        unit = match and _unit(match.group(2))
        if not match or unit is None:
            break
        total += float(match.group(1)) * unit
        position = match.end()
    if not stripped or position < len(stripped):
        raise ValueError(
            f'{what} cannot be read: {text!r}; write numbers with units, such as "3 hours", "1 day 2 minutes" or '
            '"1.5 s" (ms, seconds, minutes, hours, days, weeks)'
        )
    return _from_seconds(-total if is_negative else total, what)


def _unit(word: str) -> float | None:
    word = word.lower()
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
