"""Rates of limits as operators see them: what is reserved until when, what is closed and by whom, and who waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min

from durable.conf import conf
from durable.core.rates import LimitClosing, Rate, RefusedStart, from_nanoseconds
from durable.core.slot_records import limit_label
from durable.models import RateKey, RateLimit, Reservation
from durable.models.run import RunQuerySet

__all__ = [
    "RateKeySummary",
    "RateSummary",
    "RateWait",
    "closing_of",
    "list_rates",
    "rate_wait_of",
    "refusal_of",
    "reservations_of",
]

_PLACES = 1_000  # of the attempts that wait, that are counted
_SHOWN = 20  # attempts of a key that are shown
_KEYS = 100  # of a limit that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWait:
    """An attempt that waits for its moment `at`, behind so many others of its key."""

    limit: str
    key: str
    units: int
    at: datetime
    before: int
    rate: str
    closing: LimitClosing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKeySummary:
    """A key of a rate: how many attempts wait, until when it is reserved, and its closing, None while it is open.

    `refused` is how many starts it has refused, and `last_refused` the last one.
    """

    key: str
    waiting: int
    next_at: datetime | None
    reserved_until: datetime | None
    closing: LimitClosing | None
    refused: int
    last_refused: RefusedStart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSummary:
    """A limit's rate. `code_says` is that of code and settings. `closing` is that of all keys. The keys that are reserved for
    the longest come first.
    """

    name: str
    rate: Rate
    code_says: Rate
    is_overridden: bool
    closing: LimitClosing | None
    keys: list[RateKeySummary]


def rate_wait_of(run_id: str, now: datetime) -> RateWait | None:
    """Return the attempt of the run that waits for the nearest moment; None if none waits."""
    rows = Reservation.objects.using(conf.DATABASE)
    mine = rows.filter(run_id=run_id, at__gt=now).order_by("at", "id").first()
    if mine is None:
        return None
    ahead = rows.filter(limit=mine.limit, key=mine.key, at__gt=now, at__lt=mine.at)
    limit = RateLimit.objects.using(conf.DATABASE).filter(name=mine.limit).first()
    return RateWait(
        limit=mine.limit,
        key=mine.key,
        units=mine.units,
        at=mine.at,
        before=ahead[:_PLACES].count(),
        rate="" if limit is None else str(limit.now),
        closing=closing_of(mine.limit, mine.key, now),
    )


def closing_of(limit: str, key: str, now: datetime) -> LimitClosing | None:
    """Return the closing of a key, or of all keys of its limit, that lasts longest; None while it is open."""
    rows = RateKey.objects.using(conf.DATABASE).filter(limit=limit, key__in={"", key}, closed_until__gt=now)
    closings = [each for row in rows if (each := row.closing(now)) is not None]
    return max(closings, key=lambda each: each.until, default=None)


def list_rates(now: datetime, name: str = "", within: RunQuerySet | None = None) -> list[RateSummary]:
    """Return the rates by the names of their limits, or that of one; at most 100 keys of each.

    With `within`, only keys for which one of these runs waits, and the one without a name.
    """
    limits = RateLimit.objects.using(conf.DATABASE).order_by("name")
    return [_summary(each, now, within) for each in (limits.filter(name=name) if name else limits)]


def reservations_of(limit: str, key: str, now: datetime) -> list[Reservation]:
    """Return the next attempts of a key that wait for their moments, with their runs."""
    rows = Reservation.objects.using(conf.DATABASE).filter(limit=limit, key=key, at__gt=now).select_related("run")
    return list(rows.defer("run__input", "run__output").order_by("at", "id")[:_SHOWN])


def refusal_of(run_id: str) -> str:
    """Return a sentence about the start that would have made a run of this id, if a rate has refused that last; "" if not."""
    rows = RateKey.objects.using(conf.DATABASE).filter(refused_run=run_id, refused_at__isnull=False)
    found = rows.order_by("-refused_at").first()
    if found is None or found.last_refused is None:
        return ""
    last = found.last_refused
    return (
        f"the rate of the limit {limit_label(found.limit, found.key)} refused a start of {last.workflow} with this id at "
        f"{last.at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _summary(limit: RateLimit, now: datetime, within: RunQuerySet | None) -> RateSummary:
    rows = RateKey.objects.using(conf.DATABASE).filter(limit=limit.name)
    waiting = Reservation.objects.using(conf.DATABASE).filter(limit=limit.name, at__gt=now)
    if within is not None:
        rows = rows.filter(key__in=waiting.filter(run__in=within).values("key")) | rows.filter(key="")
    shown = list(rows.order_by("-reserved", "key")[:_KEYS])
    counts = waiting.filter(key__in=[row.key for row in shown]).values_list("key").order_by()
    waits = {key: (number, next_at) for key, number, next_at in counts.annotate(Count("id"), Min("at"))}
    return RateSummary(
        name=limit.name,
        rate=limit.now,
        code_says=limit.code_says,
        is_overridden=limit.override is not None,
        closing=closing_of(limit.name, "", now),
        keys=[_key(row, waits.get(row.key, (0, None)), now) for row in shown],
    )


def _key(row: RateKey, waits: tuple[int, datetime | None], now: datetime) -> RateKeySummary:
    newest = max(row.reserved, row.put_off)
    return RateKeySummary(
        key=row.key,
        waiting=waits[0],
        next_at=waits[1],
        reserved_until=from_nanoseconds(newest) if newest else None,
        closing=row.closing(now),
        refused=row.refused,
        last_refused=row.last_refused,
    )
