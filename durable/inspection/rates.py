"""Rates of limits as operators see them: what is reserved until when, what is closed and by whom, and who waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Subquery

from durable.conf import conf
from durable.core import registry
from durable.core.gcra import Cell, Want, begin_anew, reserve
from durable.core.rate_counts import BUCKETS, counts_of
from durable.core.rates import LimitClosing, Rate, RefusedStart, from_nanoseconds, nanoseconds
from durable.core.slot_records import limit_label
from durable.inspection.capped_counts import CappedCount, Count, count_capped
from durable.inspection.loose_scans import keys_awaited
from durable.inspection.visibility import first_visible
from durable.models import RateKey, RateLimit, Reservation
from durable.models.run import RunQuerySet

_PLACES = 1_000  # of the attempts that wait, that are counted
_SHOWN = 20  # attempts of a key that are shown
_KEYS = 100  # of a limit that are told
_LIMITS = 100  # that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWait:
    """An attempt that waits for its moment `at`, behind so many others of its key.

    `sooner` is its moment if all that wait were given new ones, None if it is no earlier one, or others are before it:
    those that were cancelled keep theirs.
    """

    limit: str
    key: str
    units: int
    at: datetime
    before: int
    rate: str
    closing: LimitClosing | None
    sooner: datetime | None = None
    rate_text: str = ""
    burst: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKeySummary:
    """A key of a rate: how many attempts wait, until when it is reserved, and its closing, None while it is open.

    `waiting` is counted up to 1,000. `last_minute` has the units that have begun in each five seconds, the oldest
    first. `refused` is how many starts it has refused, and `last_refused` the last one.
    """

    key: str
    waiting: int
    next_at: datetime | None
    reserved_until: datetime | None
    closing: LimitClosing | None
    last_minute: list[int]
    refused: int
    last_refused: RefusedStart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSummary:
    """A limit's rate.

    `code_says` is the rate that code and settings give. `closing` is that of all keys. The keys for which most attempts
    wait come first.
    """

    name: str
    rate: Rate
    code_says: Rate
    is_overridden: bool
    closing: LimitClosing | None
    keys: list[RateKeySummary]

    @property
    def last_minute(self) -> list[int]:
        """The units of these keys that have begun in each five seconds of the last minute, the oldest first."""
        return [sum(each.last_minute[number] for each in self.keys) for number in range(BUCKETS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCounts:
    """The number of attempts that wait for moments in a limit's rate, and that of its closed keys."""

    name: str
    waiting: Count
    closed: int


def rate_wait_of(run_id: str, now: datetime) -> RateWait | None:
    """Return the attempt of the run that waits for the nearest moment; None if none waits."""
    rows = Reservation.objects.using(conf.DATABASE)
    mine = rows.filter(run_id=run_id, at__gt=now).order_by("at", "id").first()
    if mine is None:
        return None
    ahead = rows.filter(limit=mine.limit, key=mine.key, at__gt=now, at__lt=mine.at)
    limit = RateLimit.objects.using(conf.DATABASE).filter(name=mine.limit).first()
    before = ahead.order_by("limit", "key", "at")[:_PLACES].count()
    closing = closing_of(mine.limit, mine.key, now)
    return RateWait(
        limit=mine.limit,
        key=mine.key,
        units=mine.units,
        at=mine.at,
        before=before,
        rate="" if limit is None else str(limit.now),
        closing=closing,
        sooner=None if before or closing or limit is None else _moment_anew(mine, limit.now, now),
        rate_text="" if limit is None else limit.now.text,
        burst=1 if limit is None else limit.now.burst,
    )


def _moment_anew(mine: Reservation, rate: Rate, now: datetime) -> datetime | None:
    """Return the moment of the first attempt of its key if all were given new ones, None if it is no earlier."""
    row = RateKey.objects.using(conf.DATABASE).filter(limit=mine.limit, key=mine.key).first()
    cell = Cell() if row is None else Cell(row.reserved, row.begun, row.put_off)
    begin_anew(cell)
    want = Want(units=mine.units, at=nanoseconds(now), may_begin=False)
    _, moment = reserve(cell, rate.spacing, rate.burst, want)
    # what is a unit later may be rounding, or a unit that begins just now
    return from_nanoseconds(moment) if moment + rate.spacing < nanoseconds(mine.at) else None


def closing_of(limit: str, key: str, now: datetime) -> LimitClosing | None:
    """Return the closing of a key, or of all keys of its limit, that lasts longest; None while it is open."""
    rows = RateKey.objects.using(conf.DATABASE).filter(limit=limit, key__in={"", key}, closed_until__gt=now)
    closings = [each for row in rows if (each := row.closing(now)) is not None]
    return max(closings, key=lambda each: each.until, default=None)


def own_closing_of(limit: str, key: str, now: datetime) -> LimitClosing | None:
    """Return the closing of this key alone, "" for the one that closes all; None while it is open."""
    row = RateKey.objects.using(conf.DATABASE).filter(limit=limit, key=key).first()
    return None if row is None else row.closing(now)


def list_rates(
    now: datetime, name: str = "", within: RunQuerySet | None = None, *, with_keys: bool = True
) -> list[RateSummary]:
    """Return the rates by the names of their limits, or that of one; at most 100 limits, and 100 keys of each.

    With `within`, only keys for which one of these runs waits, and the one without a name. Without `with_keys`, no key:
    one statement and one more for each limit, and else at most four more for each.
    """
    limits = RateLimit.objects.using(conf.DATABASE).order_by("name")
    found = limits.filter(name=name) if name else limits[:_LIMITS]
    return [_summary(each, _keys_of(each.name, now, within) if with_keys else [], now) for each in found]


def reservations_of(limit: str, key: str, now: datetime) -> list[Reservation]:
    """Return the next attempts of a key that wait for their moments, with their runs."""
    rows = Reservation.objects.using(conf.DATABASE).filter(limit=limit, key=key, at__gt=now).select_related("run")
    return list(rows.defer("run__input", "run__output").order_by("limit", "key", "at")[:_SHOWN])


def count_rates(now: datetime, cap: int) -> list[RateCounts]:
    """Return the counts of each limit with a rate, of at most 100 limits; three statements.

    They count no further than `cap`.
    """
    names = list(RateLimit.objects.using(conf.DATABASE).order_by("name").values_list("name", flat=True)[:_LIMITS])
    if not names:
        return []
    rows = Reservation.objects.using(conf.DATABASE)
    waiting = [rows.filter(limit=each).order_by("limit", "key", "at") for each in names]
    closed = RateKey.objects.using(conf.DATABASE).filter(limit__in=names, closed_until__gt=now)
    closings = Counter(closed.order_by("limit").values_list("limit", flat=True)[:cap])
    counts = count_capped(waiting, cap)
    return [RateCounts(name=name, waiting=counts[number], closed=closings[name]) for number, name in enumerate(names)]


def unused_rates() -> list[str]:
    """Return the limits with a rate that the settings and workflows of this process do not name, and no run awaits."""
    named = set(conf.LIMITS)
    named |= {limit.name for each in registry.all() if each.limits is not None for limit in each.limits.limits}
    names = RateLimit.objects.using(conf.DATABASE).order_by("name").values_list("name", flat=True)[:_LIMITS]
    return [each for each in names if each not in named and not keys_awaited(each, 1)]


def refusal_of(run_id: str) -> str:
    """Return a sentence about the newest start under this id that a rate has refused; "" if none is known.

    A key of a limit keeps the start that it refused last, and no others.
    """
    rows = RateKey.objects.using(conf.DATABASE).filter(refused_run=run_id, refused_at__isnull=False)
    found = rows.order_by("-refused_at").first()
    if found is None or found.last_refused is None:
        return ""
    last = found.last_refused
    return (
        f"the rate of the limit {limit_label(found.limit, found.key)} refused a start of {last.workflow} with this id at "
        f"{last.at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _summary(limit: RateLimit, keys: list[RateKeySummary], now: datetime) -> RateSummary:
    return RateSummary(
        name=limit.name,
        rate=limit.now,
        code_says=limit.code_says,
        is_overridden=limit.override is not None,
        closing=closing_of(limit.name, "", now),
        keys=keys,
    )


def _keys_of(limit: str, now: datetime, within: RunQuerySet | None) -> list[RateKeySummary]:
    """Return the keys of a limit that are told: how many attempts wait for each, and when the next one begins."""
    waiting = Reservation.objects.using(conf.DATABASE)
    waiting = waiting.filter(limit=OuterRef("limit"), key=OuterRef("key"), at__gt=now).order_by("limit", "key", "at")
    rows = RateKey.objects.using(conf.DATABASE).filter(limit=limit, key__in=_shown_keys(limit, within))
    told = rows.annotate(waiting=CappedCount(waiting, _PLACES), next_at=Subquery(waiting.values("at")[:1]))
    return sorted((_key(row, now) for row in told), key=lambda each: (-each.waiting, each.key))


def _shown_keys(limit: str, within: RunQuerySet | None) -> set[str]:
    """Return the keys of a limit that are told: those that are awaited, then those that are closed, then by name."""
    waiting = Reservation.objects.using(conf.DATABASE).filter(limit=limit)
    if within is not None:
        mine = first_visible(waiting.order_by("limit", "key", "at"), within).values_list("key", flat=True)
        return {"", *mine[:_PLACES]}
    rows = RateKey.objects.using(conf.DATABASE).filter(limit=limit)
    keys = dict.fromkeys(keys_awaited(limit, _KEYS))
    if len(keys) < _KEYS:
        closed = rows.filter(closed_until__isnull=False).order_by("limit").values_list("key", flat=True)
        keys |= dict.fromkeys(closed[:_KEYS])
        keys |= dict.fromkeys(rows.order_by("limit", "key").values_list("key", flat=True)[:_KEYS])
    return set(list(keys)[:_KEYS]) | {""}


def _key(row: Any, now: datetime) -> RateKeySummary:
    newest = max(row.reserved, row.put_off)
    return RateKeySummary(
        key=row.key,
        waiting=row.waiting,
        next_at=row.next_at,
        reserved_until=from_nanoseconds(newest) if newest else None,
        closing=row.closing(now),
        last_minute=counts_of(row.recent, nanoseconds(now)),
        refused=row.refused,
        last_refused=row.last_refused,
    )
