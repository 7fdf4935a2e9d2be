"""Troubles of limits: slots that runs keep without going on, and lines that do not move or are long.

Each look is bounded, along an index of slots by limit and age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, Max, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models import Count as CountOf
from django.db.models.functions import Cast, Concat

from durable.conf import conf
from durable.core import registry
from durable.core.records import RunState
from durable.core.slot_records import SlotKind, limit_label
from durable.inspection.capped_counts import Count, count_capped, moment_of, sample_rows
from durable.models import Limit, Run, Slot
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

#: A slot is told of that a paused or diverged run has held for so long.
KEPT: Final = timedelta(days=1)
#: A line is told of whose first run has waited for so long, while no slot of its key was taken.
STILL: Final = timedelta(hours=1)
#: A line of a full limit is told of in which so many runs wait, the first of them for so long.
LONG: Final = 20
WAITED: Final = timedelta(minutes=1)
#: A slot is told of that a run has held for so long, and that it should have only while a worker executes it.
IDLE: Final = timedelta(minutes=1)
_LIMITS: Final = 100
_ROWS: Final = 500  # slots of a limit that are looked at
_PAUSED: Final = "paused"
_DIVERGED: Final = "diverged"
_ASLEEP: Final = "asleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """A slot that a run has held since `since` and does not use: the run is paused, or its history has diverged."""

    limit: str
    label: str
    run_id: str
    workflow: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StillLine:
    """A line that does not move.

    `run_id` is the run that has waited longest, since `since`; `held` of `at_once` are held.
    """

    limit: str
    label: str
    run_id: str
    workflow: str
    since: datetime
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
    """The numbers of a limit's held slots and waiting runs, and since when the first of these waits; None for none."""

    name: str
    held: Count
    waiting: Count
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    limit: str
    key: str
    run_id: str
    workflow: str
    standing: str
    since: datetime

    @property
    def told(self) -> dict[str, Any]:
        """What is told of it."""
        label = limit_label(self.limit, self.key)
        return {
            "limit": self.limit,
            "label": label,
            "run_id": self.run_id,
            "workflow": self.workflow,
            "since": self.since,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlot(KeptSlot):
    """A slot that a run has held since `since` for a step or for its passes, while no worker executes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTroubles:
    """The lines that do not move, those that are long, the slots that runs keep, and those that they have forgotten to
    give up.
    """

    still: list[StillLine]
    long: list[LongLine]
    kept: list[KeptSlot]
    idle: list[IdleSlot]


def slot_troubles(now: datetime, within: RunQuerySet | None = None) -> SlotTroubles:
    """Return what is wrong with the limits at `now`, of the runs `within`.

    A line does not move if a run that is not paused has waited in it for an hour, while no slot of its key was taken.
    It is long if 20 such runs wait, the first of them for a minute, while all slots of its key are held. A slot is kept
    if a paused or diverged run has held it for a day. It is idle if it is to be held only while a worker executes its
    run, and the run has slept with it for a minute. At most 100 limits are looked at, and of each the 500 runs that
    have waited longest, and the 500 oldest slots. Three statements, one where there is no limit.
    """
    limits = {limit.name: limit.number for limit in _limits()}
    waiting, *held = _old_slots(now, within)
    waiting_slots, kept, idle = _oldest([waiting, *held], limits, now)
    still, long = _lines(now, waiting_slots, limits)
    return SlotTroubles(
        still=still,
        long=long,
        kept=[KeptSlot(**slot.told) for slot in kept if slot.standing in (_PAUSED, _DIVERGED)],
        idle=[IdleSlot(**slot.told) for slot in idle if slot.standing == _ASLEEP],
    )


def _old_slots(now: datetime, within: RunQuerySet | None) -> list[QuerySet[Slot]]:
    """Return the slots that runs have waited for, those that they have held, and those of them that are not held
    between passes, for as long as is told of.
    """
    slots = _slots(within)
    held = slots.filter(is_held=True)
    return [
        slots.filter(is_held=False, since__lt=now - WAITED),
        held.filter(since__lt=now - KEPT),
        held.filter(since__lt=now - IDLE).exclude(kind=SlotKind.OPEN.value),
    ]


def _lines(now: datetime, slots: Iterable[_Slot], limits: Mapping[str, int]) -> tuple[list[StillLine], list[LongLine]]:
    """Return the lines that do not move and those that are long, of the oldest waiting slots of each limit."""
    waiting: dict[tuple[str, str], list[_Slot]] = {}
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
        facts = {**first.told, "held": number, "at_once": limits[limit]}
        if first.since < now - STILL and newest < now - STILL:
            still.append(StillLine(**facts))
        elif len(line) >= LONG and number >= limits[limit]:
            waits = Count(number=len(line), is_capped=looked_at[limit] >= _ROWS)
            long.append(LongLine(**facts, waiting=waits))
    return still, long


def unused_limits() -> list[str]:
    """Return the limits that the settings and workflows of this process do not name, and no run has a slot of."""
    named = set(conf.LIMITS)
    named |= {limit.name for each in registry.all() if each.limits is not None for limit in each.limits.limits}
    return [
        limit.name
        for limit in _limits()
        if limit.name not in named and not _slots(None).filter(limit=limit.name).exists()
    ]


def count_slots(cap: int) -> list[LimitCounts]:
    """Return the counts of each limit, of at most 100 limits, counting no further than `cap`; three statements."""
    names = [limit.name for limit in _limits()]
    held = [_slots(None).filter(limit=name, is_held=True).order_by("limit", "is_held", "since") for name in names]
    waiting = [_slots(None).filter(limit=name, is_held=False).order_by("limit", "is_held", "since") for name in names]
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
    return list(Limit.objects.using(conf.DATABASE).order_by("name")[:_LIMITS])


def _slots(within: RunQuerySet | None) -> QuerySet[Slot]:
    slots = Slot.objects.using(conf.DATABASE)
    return slots.all() if within is None else slots.filter(run__in=within)


def _of_run(now: datetime) -> QuerySet[Any]:
    """Return how the run of a slot stands, and its workflow: looked up for each slot, while for a join PostgreSQL might
    read all slots.
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


def _oldest(sources: Sequence[QuerySet[Slot]], limits: Collection[str], now: datetime) -> list[list[_Slot]]:
    """Return the oldest slots of each source and limit, with what is known of their runs; one statement at most."""
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


def _slot(limit: Any, key: Any, run_id: Any, of_run: str, since: Any) -> _Slot:
    standing, _, workflow = of_run.partition(" ")
    return _Slot(
        limit=unpack(limit),
        key=unpack(key),
        run_id=unpack(run_id),
        workflow=unpack(workflow),
        standing=standing,
        since=moment_of(since),
    )


def _newest_held(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, datetime]]:
    """Return for each key of which slots are held how many, and when the newest of them was taken; one statement."""
    by_limit: dict[str, list[str]] = {}
    for limit, key in keys:
        by_limit.setdefault(limit, []).append(key)
    wanted = Q()
    for limit, named in by_limit.items():
        wanted |= Q(limit=limit, key__in=named)
    held = Slot.objects.using(conf.DATABASE).filter(wanted, is_held=True).values("limit", "key").order_by()
    counted = held.annotate(held=CountOf("id"), newest=Max("since"))
    return {(each["limit"], each["key"]): (each["held"], each["newest"]) for each in counted}
