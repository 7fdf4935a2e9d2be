"""Limits as operators see them: what is held, who waits for how long, and why a run waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.db.models import Count, Min, Q

from durable.conf import conf
from durable.models import Limit, Run, Slot
from durable.models.run import RunQuerySet

__all__ = ["LimitKeySummary", "LimitSummary", "Line", "line_of", "list_limits", "slots_of"]

_PLACES = 1_000  # of a line that are counted
_SHOWN = 20  # slots of a key that are shown
_KEYS = 100  # of a limit that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line in which a run waits. `place` counts from 1. `holder` is the run that has held a slot for the longest."""

    limit: str
    key: str
    place: int
    held: int
    at_once: int
    since: datetime
    holder: Run | None
    holder_since: datetime | None
    holder_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKeySummary:
    """A key of a limit: how many slots are held, how many runs wait, and since when the first of them."""

    key: str
    held: int
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSummary:
    """A limit. `code_says` is the number of code and settings. Of the keys, the fullest lines come first."""

    name: str
    at_once: int
    code_says: int
    is_overridden: bool
    keys: list[LimitKeySummary]


def line_of(run_id: str) -> Line | None:
    """Return the line in which the run waits, the oldest if it waits in several; None if it waits in none."""
    slots = Slot.objects.using(conf.DATABASE)
    mine = slots.filter(run_id=run_id, is_held=False).order_by("since", "id").first()
    if mine is None:
        return None
    line = slots.filter(limit=mine.limit, key=mine.key)
    limit = Limit.objects.using(conf.DATABASE).filter(name=mine.limit).first()
    holder = line.filter(is_held=True).select_related("run").order_by("since", "id").first()
    return Line(
        limit=mine.limit,
        key=mine.key,
        place=1 + line.filter(is_held=False, place__lt=mine.place)[:_PLACES].count(),
        held=line.filter(is_held=True).count(),
        at_once=0 if limit is None else limit.number,
        since=mine.since,
        holder=None if holder is None else holder.run,
        holder_since=None if holder is None else holder.since,
        holder_kind="" if holder is None else holder.kind,
    )


def list_limits(name: str = "", within: RunQuerySet | None = None) -> list[LimitSummary]:
    """Return the limits by name, or one of them; at most 100 keys of each.

    With `within`, only keys of which one of these runs holds a slot or waits for one.
    """
    limits = Limit.objects.using(conf.DATABASE).order_by("name")
    return [_summary(each, within) for each in (limits.filter(name=name) if name else limits)]


def slots_of(limit: str, key: str) -> tuple[list[Slot], list[Slot]]:
    """Return the slots of a key: those held for the longest, and the first places of its line, with their runs."""
    rows = Slot.objects.using(conf.DATABASE).filter(limit=limit, key=key).select_related("run")
    rows = rows.defer("run__input", "run__output")
    held = rows.filter(is_held=True).order_by("since", "id")[:_SHOWN]
    return list(held), list(rows.filter(is_held=False).order_by("place")[:_SHOWN])


def _summary(limit: Limit, within: RunQuerySet | None) -> LimitSummary:
    slots = Slot.objects.using(conf.DATABASE).filter(limit=limit.name)
    if within is not None:
        slots = slots.filter(key__in=slots.filter(run__in=within).values("key"))
    rows = slots.values_list("key").order_by()
    keys = rows.annotate(
        held=Count("id", filter=Q(is_held=True)),
        waiting=Count("id", filter=Q(is_held=False)),
        oldest=Min("since", filter=Q(is_held=False)),
    ).order_by("-waiting", "-held", "key")
    return LimitSummary(
        name=limit.name,
        at_once=limit.number,
        code_says=limit.at_once,
        is_overridden=limit.override is not None,
        keys=[
            LimitKeySummary(key=key, held=held, waiting=waiting, oldest_at=oldest)
            for key, held, waiting, oldest in islice(keys, _KEYS)
        ],
    )
