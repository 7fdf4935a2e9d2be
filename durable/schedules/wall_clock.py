"""The instants of local times in a zone whose offset from UTC changes.

A cron rule names local times. Two readings of them are needed at a change of the offset:

- *by the clock*: a time in the gap is the first instant after the gap; a time that occurs twice is the first of both.
- *by instants*: each instant whose local time matches, so that "every two hours" neither stops nor repeats itself.

The library iterates over local times without a zone; everything about zones is here. Moments are aware, in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from durable.schedules.rules import Cron, field_walker

#: Zones keep an offset for longer than this, so that two looks this far apart miss no change.
_STEP: Final = timedelta(days=7)
_RESOLUTION: Final = timedelta(seconds=1)


def next_instant(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the rule's first moment later than `after`; None if there is none before the year 9999."""
    try:
        return _by_instants(rule, zone, after) if rule.follows_instants else _by_clock(rule, zone, after)
    except OverflowError:
        return None


def _by_clock(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    for local in _local_times(rule, after.astimezone(zone).replace(tzinfo=None)):
        instant = _first_instant(local, zone)
        if instant > after:  # not so in the second of two equal hours
            return instant
    return None


def _first_instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which clocks show `local` or, in a gap, a later time."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    # In a gap: fold=0 reckons with the offset before it, so `first` is behind the change, and fold=1 before it.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _change_between(before, first, zone)


def _by_instants(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    start, offset = after, _offset(after, zone)
    begin = after
    while True:
        local = next(_local_times(rule, (begin + offset).replace(tzinfo=None)), None)
        if local is None:
            return None
        instant = local.replace(tzinfo=UTC) - offset
        change = _next_change(start, instant, zone)
        if change is None:
            return instant
        start, offset = change, _offset(change, zone)
        begin = change - _RESOLUTION  # the instant of the change itself counts, in the new offset


def _local_times(rule: Cron, after: datetime) -> Iterator[datetime]:
    walker = field_walker(rule.expression)
    walker.dt = after.replace(microsecond=0)
    return walker


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _next_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first instant of a new offset that is later than `after` and not later than `until`."""
    low = after
    while low < until:
        high = min(low + _STEP, until)
        if _offset(high, zone) != _offset(low, zone):
            return _change_between(low, high, zone)
        low = high
    return None


def _change_between(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant with another offset than `low` has; `high` has another one."""
    before = _offset(low, zone)
    while high - low > _RESOLUTION:
        middle = low + (high - low) / 2
        if _offset(middle, zone) == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)
