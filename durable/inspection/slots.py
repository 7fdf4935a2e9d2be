"""Limits as operators see them: what is held, who waits for how long, and why a run waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from durable.conf import conf
from durable.inspection.limit_lines import lines_of
from durable.inspection.loose_scans import keys_with_slots
from durable.inspection.visibility import first_visible
from durable.models import Limit, Run, Slot
from durable.models.run import RunQuerySet

_PLACES = 1_000  # of a line that are counted
_SHOWN = 20  # slots of a key that are shown
_HELD = 10_000  # slots of a key that are counted
_KEYS = 100  # of a limit that are told
_LIMITS = 100  # that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line in which a run waits.

    `place` counts from 1. `holder` is the run that has held a slot for the longest.
    """

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
    """A key of a limit: how many slots are held, how many runs wait, and since when the first of them.

    `held` is counted up to 10,000, and `waiting` up to 1,000.
    """

    key: str
    held: int
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSummary:
    """A limit. `code_says` is the number of code and settings. Of the keys, the fullest lines come first: of more than
    100 keys, those for which a run has waited longest are here.
    """

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
    ahead = line.filter(is_held=False, place__lt=mine.place)
    limit = Limit.objects.using(conf.DATABASE).filter(name=mine.limit).first()
    holder = line.filter(is_held=True).select_related("run").order_by("since", "id").first()
    return Line(
        limit=mine.limit,
        key=mine.key,
        place=1 + ahead.order_by("limit", "key", "is_held", "place")[:_PLACES].count(),
        held=line.filter(is_held=True).count(),
        at_once=0 if limit is None else limit.number,
        since=mine.since,
        holder=None if holder is None else holder.run,
        holder_since=None if holder is None else holder.since,
        holder_kind="" if holder is None else holder.kind,
    )


def list_limits(name: str = "", within: RunQuerySet | None = None, *, with_keys: bool = True) -> list[LimitSummary]:
    """Return the limits by name, or one of them; at most 100 limits, and 100 keys of each.

    With `within`, only keys of which one of these runs holds a slot or waits for one. Without `with_keys`, no key: one
    statement, and else at most three more for each limit.
    """
    limits = Limit.objects.using(conf.DATABASE).order_by("name")
    found = limits.filter(name=name) if name else limits[:_LIMITS]
    return [_summary(each, _shown_keys(each.name, within) if with_keys else []) for each in found]


def slots_of(limit: str, key: str) -> tuple[list[Slot], list[Slot]]:
    """Return the slots of a key: those held for the longest, and the first places of its line, with their runs."""
    rows = Slot.objects.using(conf.DATABASE).filter(limit=limit, key=key).select_related("run")
    rows = rows.defer("run__input", "run__output")
    held = rows.filter(is_held=True).order_by("since", "id")[:_SHOWN]
    return list(held), list(rows.filter(is_held=False).order_by("place")[:_SHOWN])


def _summary(limit: Limit, keys: Sequence[str]) -> LimitSummary:
    lines = lines_of(limit.name, keys, most_held=_HELD, most_waiting=_PLACES)
    found = [
        LimitKeySummary(key=key, held=line.held, waiting=line.waiting, oldest_at=line.oldest_at)
        for key, line in zip(keys, lines, strict=True)
    ]
    return LimitSummary(
        name=limit.name,
        at_once=limit.number,
        code_says=limit.at_once,
        is_overridden=limit.override is not None,
        keys=sorted(found, key=lambda each: (-each.waiting, -each.held, each.key)),
    )


def _shown_keys(limit: str, within: RunQuerySet | None) -> list[str]:
    """Return the keys of a limit that are told: those for which a run has waited longest, then others by name."""
    rows = Slot.objects.using(conf.DATABASE).filter(limit=limit)
    if within is not None:
        mine = first_visible(rows.order_by("limit", "key"), within).values_list("key", flat=True)
        return list(dict.fromkeys(mine[:_PLACES]))[:_KEYS]
    longest = rows.filter(is_held=False).order_by("limit", "is_held", "since").values_list("key", flat=True)
    keys = dict.fromkeys(longest[:_PLACES])
    if len(keys) < _KEYS:
        keys |= dict.fromkeys(keys_with_slots(limit, _KEYS))
    return list(keys)[:_KEYS]
