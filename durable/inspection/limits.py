"""Limits as operators see them: slots, rates, who holds, who waits, and what is wrong.

Each query is bounded and follows an index of slots by limit and age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections
from django.db.models import Case, F, Max, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models import Count as CountOf
from django.db.models.functions import Cast, Concat

from durable.conf import conf
from durable.core import registry
from durable.core.limits.rates import (
    BUCKETS,
    Cell,
    LimitClosing,
    Rate,
    RefusedStart,
    Want,
    begin_anew,
    counts_of,
    from_nanoseconds,
    nanoseconds,
    reserve,
)
from durable.core.limits.slot_records import SlotKind, limit_label
from durable.core.records import RunState
from durable.inspection.counting import (
    CappedCount,
    Count,
    count_capped,
    keys_awaited,
    keys_with_slots,
    moment_of,
    sample_rows,
)
from durable.inspection.pagination import first_visible
from durable.inspection.reading import read_alias
from durable.models import Limit, RateKey, RateLimit, Reservation, Run, Slot
from durable.models.rows import pack, unpack
from durable.models.run import RunQuerySet
from durable.store.rules.lines import IDLE

# Both databases name the columns of VALUES alike. Ordering the slots of a key by `place` keeps each count on the index.
# Parameters: the limit and the cap of held slots, the limit and the cap of waiting ones, the limit, and a number and a
# key for each row.
_SLOTS: Final = """SELECT "durable_slot"."{column}" FROM "durable_slot" WHERE "durable_slot"."limit" = %s
  AND "durable_slot"."key" = keys.column2 AND "durable_slot"."is_held" = {is_held} ORDER BY "durable_slot"."place" LIMIT {most}"""
_COUNTED: Final = "(SELECT COUNT(*) FROM ({slots}) AS counted)"
_EACH: Final = "SELECT keys.column1, {held}, {waiting}, ({oldest}) FROM (VALUES {{keys}}) AS keys"
_LINES: Final = _EACH.format(
    held=_COUNTED.format(slots=_SLOTS.format(column="id", is_held="true", most="%s")),
    waiting=_COUNTED.format(slots=_SLOTS.format(column="id", is_held="false", most="%s")),
    oldest=_SLOTS.format(column="since", is_held="false", most="1"),
)


_PLACES = 1_000  # of a line that are counted
_SHOWN = 20  # slots of a key that are shown
_HELD = 10_000  # slots of a key that are counted
_KEYS = 100  # of a limit that are listed
_LIMITS = 100  # that are listed or examined


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line in which a run waits for the slot `mine`.

    `place` counts from 1. `holder` is the slot that a run has held for the longest.
    """

    mine: Slot
    place: int
    held: int
    at_once: int
    holder: Slot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKeySummary:
    """A key of a limit: the numbers of held slots and waiting runs, and since when the first of these waits.

    `held` is counted up to 10,000, and `waiting` up to 1,000.
    """

    key: str
    held: int
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSummary:
    """A limit. `code_says` is the number in code or settings. The keys with the fullest lines come first; of more than
    100 keys, only those for which a run has waited longest are listed.
    """

    name: str
    at_once: int
    code_says: int
    is_overridden: bool
    keys: list[LimitKeySummary]


def line_of(run_id: str) -> Line | None:
    """Return the line in which the run waits, the oldest one if there are several, or None."""
    slots = Slot.objects.using(read_alias())
    mine = slots.filter(run_id=run_id, is_held=False).order_by("since", "id").first()
    if mine is None:
        return None
    line = slots.filter(limit=mine.limit, key=mine.key)
    ahead = line.filter(is_held=False, place__lt=mine.place)
    limit = Limit.objects.using(read_alias()).filter(name=mine.limit).first()
    holder = line.filter(is_held=True).select_related("run").order_by("since", "id").first()
    return Line(
        mine=mine,
        place=1 + ahead.order_by("limit", "key", "is_held", "place")[:_PLACES].count(),
        held=line.filter(is_held=True).count(),
        at_once=0 if limit is None else limit.number,
        holder=holder,
    )


def list_limits(name: str = "", within: RunQuerySet | None = None, *, with_keys: bool = True) -> list[LimitSummary]:
    """Return the limits by name, or one of them; at most 100 limits, and 100 keys of each.

    With `within`, only keys of which one of these runs holds or awaits a slot. One statement, and with `with_keys` at
    most three more for each limit.
    """
    limits = Limit.objects.using(read_alias()).order_by("name")
    found = limits.filter(name=name) if name else limits[:_LIMITS]
    return [_summary(each, _shown_keys(each.name, within) if with_keys else []) for each in found]


def slots_of(limit: str, key: str) -> tuple[list[Slot], list[Slot]]:
    """Return the slots of a key with their runs: those held longest, and the first places in line."""
    rows = Slot.objects.using(read_alias()).filter(limit=limit, key=key).select_related("run")
    rows = rows.defer("run__input", "run__output")
    held = rows.filter(is_held=True).order_by("since", "id")[:_SHOWN]
    return list(held), list(rows.filter(is_held=False).order_by("place")[:_SHOWN])


def _summary(limit: Limit, keys: Sequence[str]) -> LimitSummary:
    return LimitSummary(
        name=limit.name,
        at_once=limit.number,
        code_says=limit.at_once,
        is_overridden=limit.override is not None,
        keys=sorted(_lines_of(limit.name, keys), key=lambda each: (-each.waiting, -each.held, each.key)),
    )


def _lines_of(limit: str, keys: Sequence[str]) -> list[LimitKeySummary]:
    """Return the summaries of these keys; one statement along an index, none without keys."""
    if not keys:
        return []
    name = pack(limit)
    given: list[str | int] = [name, _HELD, name, _PLACES, name]
    for number, key in enumerate(keys):
        given += [number, pack(key)]
    with connections[read_alias()].cursor() as cursor:
        cursor.execute(_LINES.format(keys=", ".join(["(%s, %s)"] * len(keys))), given)
        return [
            LimitKeySummary(
                key=keys[number], held=held, waiting=waiting, oldest_at=None if since is None else moment_of(since)
            )
            for number, held, waiting, since in cursor.fetchall()
        ]


def _shown_keys(limit: str, within: RunQuerySet | None) -> list[str]:
    """Return the keys of a limit to list: those for which a run has waited longest, then others by name."""
    rows = Slot.objects.using(read_alias()).filter(limit=limit)
    if within is not None:
        mine = first_visible(rows.order_by("limit", "key"), within).values_list("key", flat=True)
        return list(dict.fromkeys(mine[:_PLACES]))[:_KEYS]
    longest = rows.filter(is_held=False).order_by("limit", "is_held", "since").values_list("key", flat=True)
    keys = dict.fromkeys(longest[:_PLACES])
    if len(keys) < _KEYS:
        keys |= dict.fromkeys(keys_with_slots(limit, _KEYS))
    return list(keys)[:_KEYS]


#: How long a paused or diverged run holds a slot before the slot is reported.
KEPT: Final = timedelta(days=1)
#: How long the first run of a line waits, while no slot of the key is taken, before the line is reported.
STILL: Final = timedelta(hours=1)
#: How many runs wait for a full limit, and how long the first of them, before the line is reported.
LONG: Final = 20
WAITED: Final = timedelta(minutes=1)
_ROWS: Final = 500  # slots of a limit to examine
_PAUSED: Final = "paused"
_DIVERGED: Final = "diverged"
_ASLEEP: Final = "asleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class OldSlot:
    """A slot that a run has held, or waited for, since `since`. `standing` is "paused", "diverged" or "asleep"; "" for
    any other run.
    """

    limit: str
    key: str
    run_id: str
    workflow: str
    standing: str
    since: datetime

    @property
    def label(self) -> str:
        return limit_label(self.limit, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StillLine(OldSlot):
    """A line that does not move, and the slot of it that a run has awaited longest; `held` of `at_once` are held."""

    held: int
    at_once: int

    @property
    def has_free_slot(self) -> bool:
        """True if the run waits although a slot is free."""
        return self.held < self.at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLine(StillLine):
    """A line that moves, but is long: `waiting` runs wait for slots that are all held."""

    waiting: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCounts:
    """The numbers of a limit's held slots and waiting runs, and since when the first of these waits, or None."""

    name: str
    held: Count
    waiting: Count
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTroubles:
    """The problems with slots: stopped lines, long lines, slots that runs keep without use, and forgotten slots.

    A forgotten (idle) slot is one for a step or for passes, although no worker executes the run.
    """

    still: list[StillLine]
    long: list[LongLine]
    kept: list[OldSlot]
    idle: list[OldSlot]


def slot_troubles(now: datetime) -> SlotTroubles:
    """Return the problems with the limits' slots at `now`.

    A line does not move if a run that is not paused has waited in it for an hour, while no slot of its key was taken.
    It is long if 20 such runs wait, the first of them for a minute, while all slots of its key are held. A slot is kept
    if a paused or diverged run has held it for a day. It is idle if only a worker's pass may hold it, but the run has
    slept with it for a minute. Examines at most 100 limits, with the 500 longest-waiting runs and the 500 oldest slots
    of each. Three statements; one if there are no limits.
    """
    limits = {limit.name: limit.number for limit in _limits()}
    waiting, *held = _old_slots(now)
    waiting_slots, kept, idle = _oldest([waiting, *held], limits, now)
    still, long = _lines(now, waiting_slots, limits)
    return SlotTroubles(
        still=still,
        long=long,
        kept=[slot for slot in kept if slot.standing in (_PAUSED, _DIVERGED)],
        idle=[slot for slot in idle if slot.standing == _ASLEEP],
    )


def _old_slots(now: datetime) -> list[QuerySet[Slot]]:
    """Return the awaited slots, the kept slots (held for longer than `KEPT`), and the idle slots (for longer than
    `IDLE`).
    """
    slots = Slot.objects.using(read_alias())
    held = slots.filter(is_held=True)
    return [
        slots.filter(is_held=False, since__lt=now - WAITED),
        held.filter(since__lt=now - KEPT),
        held.filter(since__lt=now - IDLE).exclude(kind=SlotKind.OPEN.value),
    ]


def _lines(
    now: datetime, slots: Iterable[OldSlot], limits: Mapping[str, int]
) -> tuple[list[StillLine], list[LongLine]]:
    """Return the stopped and the long lines among the oldest waiting slots of each limit."""
    waiting: dict[tuple[str, str], list[OldSlot]] = {}
    looked_at: Counter[str] = Counter()
    for slot in slots:
        looked_at[slot.limit] += 1
        if slot.standing != _PAUSED:
            waiting.setdefault((slot.limit, slot.key), []).append(slot)
    told = {key: line for key, line in waiting.items() if line[0].since < now - STILL or len(line) >= LONG}
    still, long = [], []
    held = _newest_held(told) if told else {}
    for (limit, key), line in told.items():
        first = line[0]
        number, newest = held.get((limit, key), (0, first.since))
        facts = {**asdict(first), "held": number, "at_once": limits[limit]}
        if first.since < now - STILL and newest < now - STILL:
            still.append(StillLine(**facts))
        elif len(line) >= LONG and number >= limits[limit]:
            waits = Count(number=len(line), is_capped=looked_at[limit] >= _ROWS)
            long.append(LongLine(**facts, waiting=waits))
    return still, long


def _named_limits() -> set[str]:
    """Return the limits that this process's settings and workflows name."""
    of_code = {limit.name for each in registry.all() if each.limits is not None for limit in each.limits.limits}
    return of_code | set(conf.LIMITS)


def unused_limits() -> list[str]:
    """Return the limits that this process's settings and workflows do not name, and of which no run has a slot."""
    others = [limit.name for limit in _limits() if limit.name not in _named_limits()]
    return [each for each in others if not Slot.objects.using(read_alias()).filter(limit=each).exists()]


def count_slots(cap: int) -> list[LimitCounts]:
    """Return the counts of at most 100 limits, each up to `cap`; three statements."""
    names = [limit.name for limit in _limits()]
    slots = Slot.objects.using(read_alias()).order_by("limit", "is_held", "since")
    held, waiting = ([slots.filter(limit=name, is_held=is_held) for name in names] for is_held in (True, False))
    if not names:
        return []
    counts = count_capped([*held, *waiting], cap)
    oldest = sample_rows(waiting, ["since"], 1)
    return [
        LimitCounts(
            name=name,
            held=counts[number],
            waiting=counts[len(names) + number],
            oldest_at=moment_of(oldest[number][0][0]) if oldest[number] else None,
        )
        for number, name in enumerate(names)
    ]


def _limits() -> list[Limit]:
    return list(Limit.objects.using(read_alias()).order_by("name")[:_LIMITS])


def _of_run(now: datetime) -> QuerySet[Any]:
    """Return the state of a slot's run and its workflow. Looked up for each slot: with a join, PostgreSQL might read
    all slots.
    """
    standing = Case(
        When(state=RunState.PAUSED.value, then=Value(f"{_PAUSED} ")),
        When(diverged_at__isnull=False, then=Value(f"{_DIVERGED} ")),
        When(
            Q(state=RunState.SLEEPING.value) & (Q(wake_at__isnull=True) | Q(wake_at__gt=now)),
            then=Value(f"{_ASLEEP} "),
        ),
        default=Value(" "),
    )
    told = Concat(standing, Cast("workflow", TextField()), output_field=TextField())
    return Run.objects.filter(pk=OuterRef("run_id")).annotate(of_run=told).values("of_run")[:1]


def _oldest(sources: Sequence[QuerySet[Slot]], limits: Collection[str], now: datetime) -> list[list[OldSlot]]:
    """Return the oldest slots of each source and limit, with facts about their runs; at most one statement."""
    if not limits:
        return [[] for _ in sources]
    oldest = [
        slots.annotate(limited_by=F("limit"), of_run=Subquery(_of_run(now))).filter(limit=name).order_by("since")
        for slots in sources
        for name in limits
    ]
    found = sample_rows(oldest, ["limited_by", "key", "run_id", "of_run", "since"], _ROWS)
    return [
        [_slot(*row) for rows in found[number * len(limits) : (number + 1) * len(limits)] for row in rows]
        for number in range(len(sources))
    ]


def _slot(limit: Any, key: Any, run_id: Any, of_run: str, since: Any) -> OldSlot:
    standing, _, workflow = of_run.partition(" ")
    return OldSlot(
        limit=unpack(limit),
        key=unpack(key),
        run_id=unpack(run_id),
        workflow=unpack(workflow),
        standing=standing,
        since=moment_of(since),
    )


def _newest_held(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, datetime]]:
    """Return the number of held slots of each key, and when the newest of them was taken; unused keys are missing."""
    by_limit: dict[str, list[str]] = {}
    for limit, key in keys:
        by_limit.setdefault(limit, []).append(key)
    wanted = Q()
    for limit, named in by_limit.items():
        wanted |= Q(limit=limit, key__in=named)
    held = Slot.objects.using(read_alias()).filter(wanted, is_held=True).values("limit", "key").order_by()
    counted = held.annotate(held=CountOf("id"), newest=Max("since"))
    return {(each["limit"], each["key"]): (each["held"], each["newest"]) for each in counted}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWait:
    """An attempt that waits for its moment `at`, behind `before` other units of its key.

    `sooner` is the earlier moment that it would get if all waiting attempts got new ones; None if there is none, or if
    others are before it, because cancelled ones keep theirs.
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

    `waiting` is counted up to 1,000. `last_minute` has the units begun in each five seconds, the oldest first.
    `refused` is the number of refused starts, and `last_refused` the last one.
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

    `code_says` is the rate in code or settings. `closing` is that of all keys. The keys with most waiting attempts come
    first.
    """

    name: str
    rate: Rate
    code_says: Rate
    is_overridden: bool
    closing: LimitClosing | None
    keys: list[RateKeySummary]

    @property
    def last_minute(self) -> list[int]:
        """The units of these keys begun in each five seconds of the last minute, the oldest first."""
        return [sum(each.last_minute[number] for each in self.keys) for number in range(BUCKETS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCounts:
    """The numbers of a limit's attempts that wait for moments in its rate, and of its closed keys."""

    name: str
    waiting: Count
    closed: int


def rate_wait_of(run_id: str, now: datetime) -> RateWait | None:
    """Return the run's waiting attempt with the nearest moment, or None."""
    rows = Reservation.objects.using(read_alias())
    mine = rows.filter(run_id=run_id, at__gt=now).order_by("at", "id").first()
    if mine is None:
        return None
    ahead = rows.filter(limit=mine.limit, key=mine.key, at__gt=now, at__lt=mine.at)
    limit = RateLimit.objects.using(read_alias()).filter(name=mine.limit).first()
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
    """Return the moment that the first attempt of its key would get anew; None if that is no earlier."""
    row = RateKey.objects.using(read_alias()).filter(limit=mine.limit, key=mine.key).first()
    cell = Cell() if row is None else Cell(row.reserved, row.begun, row.put_off)
    begin_anew(cell)
    want = Want(units=mine.units, at=nanoseconds(now), may_begin=False)
    _, moment = reserve(cell, rate.spacing, rate.burst, want)
    # a difference of one unit may be rounding, or a unit that begins just now
    return from_nanoseconds(moment) if moment + rate.spacing < nanoseconds(mine.at) else None


def closing_of(limit: str, key: str, now: datetime) -> LimitClosing | None:
    """Return the closing of a key or of all its limit's keys, whichever lasts longer; None while the key is open."""
    rows = RateKey.objects.using(read_alias()).filter(limit=limit, key__in={"", key}, closed_until__gt=now)
    closings = [each for row in rows if (each := row.closing(now)) is not None]
    return max(closings, key=lambda each: each.until, default=None)


def own_closing_of(limit: str, key: str, now: datetime) -> LimitClosing | None:
    """Return the closing of just this key ("" for the closing of all keys); None while it is open."""
    row = RateKey.objects.using(read_alias()).filter(limit=limit, key=key).first()
    return None if row is None else row.closing(now)


def list_rates(
    now: datetime, name: str = "", within: RunQuerySet | None = None, *, with_keys: bool = True
) -> list[RateSummary]:
    """Return the rates by the names of their limits, or that of one; at most 100 limits, and 100 keys of each.

    With `within`, only keys for which one of these runs waits, and the key "". One statement, and one more for each
    limit; with `with_keys` at most four more for each.
    """
    limits = RateLimit.objects.using(read_alias()).order_by("name")
    found = limits.filter(name=name) if name else limits[:_LIMITS]
    return [_rate_summary(each, _keys_of(each.name, now, within) if with_keys else [], now) for each in found]


def reservations_of(limit: str, key: str, now: datetime) -> list[Reservation]:
    """Return the next waiting attempts of a key, with their runs."""
    rows = Reservation.objects.using(read_alias()).filter(limit=limit, key=key, at__gt=now).select_related("run")
    return list(rows.defer("run__input", "run__output").order_by("limit", "key", "at")[:_SHOWN])


def count_rates(now: datetime, cap: int) -> list[RateCounts]:
    """Return the counts of at most 100 limits with a rate; three statements.

    Each count goes up to `cap`.
    """
    names = _rated_limits()
    if not names:
        return []
    rows = Reservation.objects.using(read_alias())
    waiting = [rows.filter(limit=each).order_by("limit", "key", "at") for each in names]
    closed = RateKey.objects.using(read_alias()).filter(limit__in=names, closed_until__gt=now)
    closings = Counter(closed.order_by("limit").values_list("limit", flat=True)[:cap])
    counts = count_capped(waiting, cap)
    return [RateCounts(name=name, waiting=counts[number], closed=closings[name]) for number, name in enumerate(names)]


def unused_rates() -> list[str]:
    """Return the limits with a rate that this process's settings and workflows do not name, and for which no run
    waits.
    """
    named = _named_limits()
    return [each for each in _rated_limits() if each not in named and not keys_awaited(each, 1)]


def _rated_limits() -> list[str]:
    limits = RateLimit.objects.using(read_alias()).order_by("name")
    return list(limits.values_list("name", flat=True)[:_LIMITS])


def refusal_of(run_id: str) -> str:
    """Describe the newest start with this id that a rate has refused; "" if none is known.

    A key of a limit remembers only its last refused start.
    """
    rows = RateKey.objects.using(read_alias()).filter(refused_run=run_id, refused_at__isnull=False)
    found = rows.order_by("-refused_at").first()
    if found is None or found.last_refused is None:
        return ""
    last = found.last_refused
    return (
        f"the rate of the limit {limit_label(found.limit, found.key)} refused a start of {last.workflow} with this id at "
        f"{last.at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _rate_summary(limit: RateLimit, keys: list[RateKeySummary], now: datetime) -> RateSummary:
    return RateSummary(
        name=limit.name,
        rate=limit.now,
        code_says=limit.code_says,
        is_overridden=limit.override is not None,
        closing=closing_of(limit.name, "", now),
        keys=keys,
    )


def _keys_of(limit: str, now: datetime, within: RunQuerySet | None) -> list[RateKeySummary]:
    """Return the keys of a limit to list, with the number of waiting attempts and the time of the next one."""
    waiting = Reservation.objects.using(read_alias())
    waiting = waiting.filter(limit=OuterRef("limit"), key=OuterRef("key"), at__gt=now).order_by("limit", "key", "at")
    rows = RateKey.objects.using(read_alias()).filter(limit=limit, key__in=_shown_rate_keys(limit, within))
    told = rows.annotate(waiting=CappedCount(waiting, _PLACES), next_at=Subquery(waiting.values("at")[:1]))
    return sorted((_key(row, now) for row in told), key=lambda each: (-each.waiting, each.key))


def _shown_rate_keys(limit: str, within: RunQuerySet | None) -> set[str]:
    """Sort the names of these keys: awaited ones, then closed ones, then by name; return the first."""
    waiting = Reservation.objects.using(read_alias()).filter(limit=limit)
    if within is not None:
        mine = first_visible(waiting.order_by("limit", "key", "at"), within).values_list("key", flat=True)
        return {"", *mine[:_PLACES]}
    rows = RateKey.objects.using(read_alias()).filter(limit=limit)
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
