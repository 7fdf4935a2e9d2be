"""Schedules as surfaces show them: their next moments, the rule in words, the newest ticks, and problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import F, QuerySet
from django.utils.translation import get_language

from durable.inspection.reading import read_alias
from durable.inspection.workflows import workflow_of
from durable.models import Schedule, Tick
from durable.schedules.missed import LATE
from durable.schedules.rules import upcoming
from durable.schedules.words import in_words

#: Schedules of one page.
MOST: Final = 100
#: The most ticks to count.
CAP: Final = 1_000
_MOMENTS: Final = 5
_DOTS: Final = 20


def tick_of(run_id: str) -> Tick | None:
    """Return the tick that has started the run, with its schedule, or None; old ticks are deleted.

    One look at an index.
    """
    found = Tick.objects.using(read_alias()).filter(run_id=run_id).exclude(run_id="")
    return found.select_related("schedule").order_by("pk").first()


def tick_data(tick: Tick | None) -> dict[str, Any] | None:
    """Return the schedule and the moment that have started a run, as data."""
    if tick is None:
        return None
    return {"name": tick.schedule.name, "moment": tick.moment.isoformat(), "kind": tick.kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSummary:
    """A schedule, its rule in words, its next moments, and its newest ticks, newest first."""

    schedule: Schedule
    words: str
    moments: Sequence[datetime]
    ticks: Sequence[Tick]
    is_late: bool

    @property
    def state(self) -> str:
        """One of "gone", "paused", "late", "waiting" and "active"."""
        if self.schedule.gone_at is not None:
            return "gone"
        if self.schedule.paused:
            return "paused"
        if self.is_late:
            return "late"
        return "waiting" if self.schedule.waiting_at is not None else "active"


def clock_of_rule(schedule: Schedule, moment: datetime, shown_in: tzinfo) -> str:
    """Return the moment in the schedule's time zone, "02:30 CET", with the date if it differs there.

    "" if that zone shows the same time as `shown_in`.
    """
    local, shown = moment.astimezone(ZoneInfo(schedule.zone_in_force)), moment.astimezone(shown_in)
    if local.utcoffset() == shown.utcoffset():
        return ""
    return f"{local:%H:%M %Z}" if local.date() == shown.date() else f"{local:%Y-%m-%d %H:%M %Z}"


def list_schedules(
    now: datetime, *, after: str = "", workflow: str = "", most: int = MOST, with_ticks: bool = True
) -> tuple[list[ScheduleSummary], str]:
    """Return the schedules by name after `after`, and the `after` of the next page ("" for none).

    One statement along an index, one more with the newest ticks, and one for the other names of `workflow`.
    """
    found = Schedule.objects.using(read_alias()).defer("input").order_by("name")
    if after:
        found = found.filter(name__gt=after)
    if workflow:
        found = found.filter(workflow__in=workflow_of(workflow).names)
    rows = list(found[: most + 1])
    shown = rows[:most]
    return _summaries(shown, now, with_ticks=with_ticks), shown[-1].name if len(rows) > most else ""


def find_schedule(name: str, now: datetime) -> ScheduleSummary | None:
    row = Schedule.objects.using(read_alias()).filter(name=name).first()
    return None if row is None else _summaries([row], now)[0]


def ticks_of(schedule: Schedule, most: int = 200) -> list[Tick]:
    return list(schedule.ticks.using(read_alias()).order_by("-number")[:most])


def late_schedules(now: datetime, most: int = 10) -> list[Schedule]:
    """Return schedules whose tick is late because no ticker runs, or none keeps up. The latest first; along an
    index.
    """
    found = Schedule.objects.using(read_alias()).filter(due_at__lt=now - LATE).defer("input").order_by("due_at")
    return list(found[:most])


@dataclass(frozen=True, slots=True, kw_only=True)
class TickCounts:
    """The number of ticks of one outcome in a period, at most `CAP`, and some of their schedules."""

    number: int
    names: Sequence[str]

    @property
    def is_capped(self) -> bool:
        """True if there may be more."""
        return self.number >= CAP


def troubled_ticks(now: datetime, since: datetime) -> tuple[QuerySet[Any], QuerySet[Any], QuerySet[Any]]:
    """Return three querysets: late schedules, refused ticks, and missed ticks since then, each in the order of an
    index.

    All have `name`, `since` and `moment`, for `sample_rows`.
    """
    late = Schedule.objects.using(read_alias()).filter(due_at__lt=now - LATE).order_by("due_at")
    ticks = Tick.objects.using(read_alias()).filter(decided_at__gte=since).order_by("-decided_at")
    named = ticks.annotate(name=F("schedule__name"), since=F("decided_at"))
    return (
        late.annotate(since=F("due_at"), moment=F("due_at")),
        named.filter(outcome="refused"),
        named.filter(outcome="missed"),
    )


def gone_schedules() -> list[str]:
    """Return the names of the first ten schedules that the code no longer has; each is paused."""
    found = Schedule.objects.using(read_alias()).filter(gone_at__isnull=False).order_by("name")
    return list(found.values_list("name", flat=True)[:10])


def count_ticks(outcome: str, since: datetime) -> TickCounts:
    """Count the ticks with this outcome that were decided since then; along an index."""
    found = Tick.objects.using(read_alias()).filter(outcome=outcome, decided_at__gte=since).order_by("-decided_at")
    names = list(found.values_list("schedule__name", flat=True)[:CAP])
    return TickCounts(number=len(names), names=list(dict.fromkeys(names))[:5])


def _summaries(rows: Sequence[Schedule], now: datetime, *, with_ticks: bool = True) -> list[ScheduleSummary]:
    ticks = _newest_ticks(rows) if with_ticks else {}
    return [
        ScheduleSummary(
            schedule=row,
            words=_words(row),
            moments=_moments(row),
            ticks=ticks.get(row.pk, ()),
            is_late=row.due_at is not None and row.due_at < now - LATE,
        )
        for row in rows
    ]


def _newest_ticks(rows: Sequence[Schedule]) -> dict[int, list[Tick]]:
    """Return the newest ticks of each schedule that has ticked; one statement.

    The ticks of a schedule are numbered without gaps, so a range of numbers selects the newest.
    """
    found: dict[int, list[Tick]] = {}
    ticked = {row.pk: row for row in rows if row.tick_count}
    if ticked:
        ticks = Tick.objects.using(read_alias()).filter(schedule__in=ticked)
        newest = ticks.filter(number__gt=F("schedule__tick_count") - _DOTS)
        for tick in newest.order_by("schedule", "-number"):
            tick.schedule = ticked[tick.schedule_id]
            found.setdefault(tick.schedule_id, []).append(tick)
    return found


def _words(row: Schedule) -> str:
    try:
        return in_words(row.rules.rules, get_language() or "en")
    except ValueError:  # written without the checks
        return row.override_rule or row.rule


def _moments(row: Schedule) -> list[datetime]:
    if row.next_at is None:
        return []
    try:
        following: Iterable[Any] = islice(
            upcoming(row.rules.rules, row.zone_in_force, row.next_at - timedelta(microseconds=1)), _MOMENTS
        )
        return list(following)
    except ValueError:
        return [row.next_at]
