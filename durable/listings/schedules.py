"""Schedules and their ticks."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from durable.inspection.pagination import cursor_of, key_of
from durable.inspection.schedules import list_schedules, ticks_of
from durable.listings.listing import Filter, Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, field
from durable.models import Tick as TickRow
from durable.operations.schedules.verbs import revision_of
from durable.schedules import CATCH_UPS, OVERLAPS


class Tick(Shape):
    """A tick: the outcome of one moment of a schedule."""

    moment: datetime
    kind: str = field(choices=["tick", "catch_up", "run_now", "backfill"])
    outcome: str = field(choices=TickRow.Outcome.values)
    run: str = field("run_id", help="The run's id; empty if there is none.")
    why: str = field("why_now")
    decided_at: datetime


class Schedule(Shape):
    """A schedule, without its arguments."""

    name: str = field("schedule.name")
    workflow: str = field("schedule.workflow")
    state: str = field(choices=["active", "waiting", "paused", "late", "gone"])
    rule: str = field("schedule.rules.text", help="The rule in force.")
    words: str = field(help="The rule in words.")
    zone: str = field("schedule.zone_in_force")
    is_overridden: bool = field("schedule.is_overridden")
    origin: str = field("schedule.origin", choices=["code", "admin"])
    queue: str = field("schedule.queue", help="Empty for the workflow's own.")
    overlap: str = field("schedule.overlap", choices=OVERLAPS)
    catch_up: str = field("schedule.catch_up", choices=CATCH_UPS)
    window: float | None = field("schedule.window", help="In seconds; null for none.")
    jitter: float = field("schedule.jitter", help="In seconds.")
    paused: bool = field("schedule.paused")
    paused_by: str = field("schedule.paused_by")
    pause_reason: str = field("schedule.pause_reason")
    next: list[datetime] = field("moments", help="The next five moments.")
    revision: str = field(lambda each, _seen: revision_of(each.schedule), help="For the `revision` of a verb.")


class ScheduleDetail(Schedule):
    """A schedule with its newest ticks, newest first."""

    ticks: list[Tick] = field(lambda each, _seen: ticks_of(each.schedule))


class Backfill(Shape):
    """The runs that a backfill starts or has started."""

    moments: list[datetime] = field(help="The moments without a run.")
    existing: int = field(help="How many moments of the period have a run already.")
    ticks: list[Tick] = field(help="What was started; empty with `dry_run`.")


def _schedules(seen: Seen, *, workflow: str, limit: int, cursor: str | None = None, with_ticks: bool = False) -> Page:
    key = key_of(cursor, str)
    found, after = list_schedules(
        seen.now, after=key[0] if key else "", workflow=workflow, most=limit, with_ticks=with_ticks
    )
    return Page(results=found, next_cursor=cursor_of(after) if after else None)


SCHEDULES: Final = Listing(
    name="schedules",
    item=Schedule,
    page=list_of(Schedule, "SchedulePage", "Schedules by name."),
    read=_schedules,
    is_paged=True,
    about="schedules",
    filters=[
        Filter(
            name="workflow",
            kind=str,
            default="",
            does="Schedules of this workflow alone.",
            on_shell="schedules of this workflow alone",
            short="-w",
            metavar="NAME",
        )
    ],
    over_rest="Return the schedules by name.",
)
