"""The moments of rules: the next one, the next few, those of a period. Aware, in UTC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from durable.schedules.rules import Every, Rule
from durable.schedules.wall_clock import next_instant

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_BACK: Final = timedelta(minutes=10)


def next_after(rules: Sequence[Rule], zone: str, after: datetime) -> datetime | None:
    """Return the first moment of the rules that is later than `after`; None if there is none."""
    local = ZoneInfo(zone)
    utc = after.astimezone(UTC)
    found = [moment for rule in rules if (moment := _next(rule, local, utc)) is not None]
    return min(found, default=None)


def upcoming(rules: Sequence[Rule], zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the moments of the rules that are later than `after`, the earliest first."""
    moment = next_after(rules, zone, after)
    while moment is not None:
        yield moment
        moment = next_after(rules, zone, moment)


def latest(
    rules: Sequence[Rule], zone: str, since: datetime, until: datetime, most: int
) -> tuple[list[datetime], bool]:
    """Return the newest `most` moments from `since` to `until`, both included, oldest first, and whether these are all.

    The cost depends on `most` and not on the length of the period: the search begins at its end.
    """
    span = _LOOK_BACK
    just_before = timedelta(microseconds=1)
    while True:
        start = max(since, until - span)
        moments = list(takewhile(lambda each: each <= until, upcoming(rules, zone, start - just_before)))
        if len(moments) > most or start <= since:
            return moments[-most:], start <= since and len(moments) <= most
        span *= 4


def _next(rule: Rule, zone: ZoneInfo, after: datetime) -> datetime | None:
    if not isinstance(rule, Every):
        return next_instant(rule, zone, after)
    passed = (after - _EPOCH - rule.offset) // rule.duration
    try:
        return _EPOCH + rule.offset + (passed + 1) * rule.duration
    except OverflowError:
        return None
