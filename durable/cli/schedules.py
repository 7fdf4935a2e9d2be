"""`durable schedules`, `create-schedule`, `edit-schedule`, `backfill`, and the outcome of `run-schedule`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Cell, Exit, Output
from durable.cli.subcommand import (
    ACTING,
    CONFIRMING,
    JSON_HELP,
    KEYWORDS,
    REVISION,
    acting,
    argument,
    confirm,
    duration,
    formats,
    json_value,
    moment,
    need_terminal,
    option,
    subcommand,
)
from durable.inspection.humanize import plural
from durable.inspection.reading import reading
from durable.inspection.schedules import ScheduleSummary, clock_of_rule, find_schedule, list_schedules, ticks_of
from durable.listings.schedules import Schedule, ScheduleDetail
from durable.listings.shapes import Seen, data_of
from durable.models import Tick
from durable.operations.catalogue import BY_ACTION, RULE
from durable.operations.schedules import verbs
from durable.operations.schedules.sync import differences, synchronise
from durable.schedules import CATCH_UPS, OVERLAPS

#: By state, the word whose colour it shares.
_COLOURS = {"gone": "note", "paused": "paused", "late": "problem", "waiting": "note", "active": ""}
_OUTCOMES = {"started": "ok", "skipped": "note", "missed": "problem", "refused": "refused", "waiting": "note"}
_TICKS = 20


@subcommand(
    "schedules",
    "List the schedules with their next moments, or show one with its newest ticks. With --sync, write those that "
    "the code declares into the database.",
    argument("name", nargs="?", default="", metavar="NAME", help="show this one with its newest ticks"),
    argument("-w", "--workflow", default="", metavar="NAME", help="schedules of this workflow alone"),
    argument("--sync", action="store_true", help="write the schedules of the code into the database"),
    argument("--dry-run", action="store_true", help="with --sync: say what would be written"),
    formats("table", "json"),
)
def schedules_command(options: Namespace, output: Output) -> int:
    if options.sync:
        return _synchronise(output, dry_run=options.dry_run)
    if options.dry_run:
        raise CommandError("--dry-run goes with --sync", returncode=Exit.USAGE)
    now = timezone.now()
    with reading():
        if options.name:
            return _show(output, options.name, now)
        _list(output, options.workflow, now)
    return Exit.OK


def _synchronise(output: Output, *, dry_run: bool) -> int:
    found = differences() if dry_run else synchronise()
    if output.format == "json":
        for each in found:
            output.json({"name": each.name, "change": each.change, "fields": list(each.fields)})
        return Exit.OK
    for each in found:
        output.line(each)
    if not found:
        output.say("The schedules are as the code declares them.")
    return Exit.OK


def _list(output: Output, workflow: str, now: datetime) -> None:
    after = ""
    while True:
        found, after = list_schedules(now, after=after, workflow=workflow)
        if output.format == "json":
            for each in found:
                output.json(data_of(Schedule, each, Seen(now=now)))
        else:
            output.table(["NAME", "STATE", "NEXT", "LAST", "RULE"], (_row(each) for each in found))
        if not after:
            return


def _row(each: ScheduleSummary) -> list[Cell | object]:
    last = next((tick for tick in each.ticks), None)
    return [
        each.schedule.name,
        Cell(each.state, _COLOURS[each.state]),
        "" if not each.moments or each.schedule.paused else _both_clocks(each, each.moments[0]),
        "" if last is None else Cell(last.outcome, _OUTCOMES.get(last.outcome, "")),
        f"{each.words} ({each.schedule.zone_in_force}){', overridden' if each.schedule.is_overridden else ''}",
    ]


def _show(output: Output, name: str, now: datetime) -> int:
    found = find_schedule(name, now)
    if found is None:
        raise CommandError(f'no schedule has the name "{name}"', returncode=Exit.REFUSED)
    if output.format == "json":
        output.json(data_of(ScheduleDetail, found, Seen(now=now)))
        return Exit.OK
    row = found.schedule
    resumed = "until it is resumed, and " if row.paused else ""
    output.facts(
        {
            "name": row.name,
            "workflow": row.workflow,
            "state": found.state,
            "paused": f"{row.paused_by} {row.pause_reason}".strip() if row.paused else "",
            "rule": f"{found.words} ({row.rules.text}, {row.zone_in_force})",
            "overridden": f"the code says {row.rule} ({row.zone})" if row.is_overridden else "",
            "queue": row.queue,
            "overlap": row.overlap,
            "catch up": row.catch_up,
            "window": row.window,
            "jitter": row.jitter or "",
            "of": "the code" if row.origin == "code" else "operators",
            "waits": "" if row.waiting_at is None else f"{resumed}for the end of {row.last_run_id}",
            "next": "" if row.paused else ", ".join(_both_clocks(found, each) for each in found.moments),
        }
    )
    output.table(
        ["MOMENT (UTC)", "OUTCOME", "RUN", "WHY"],
        (
            (
                f"{each.moment:%Y-%m-%d %H:%M:%S}",
                Cell(each.outcome, _OUTCOMES.get(each.outcome, "")),
                each.run_id,
                each.why_now,
            )
            for each in ticks_of(found.schedule, _TICKS)
        ),
    )
    return Exit.OK


def _both_clocks(each: ScheduleSummary, moment: datetime) -> str:
    """Return the moment in UTC and in the rule's time zone."""
    clock = clock_of_rule(each.schedule, moment, UTC)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC{f' ({clock})' if clock else ''}"


# -- the verbs that have more options than a subcommand of `verb_command`


_NAME: Final = argument("name", metavar="NAME", help="the name of the schedule")


def told_of_tick(tick: Tick, output: Output) -> int:
    """Print the outcome of a tick; return the exit status."""
    if tick.outcome == "started":
        output.id(tick.run_id)
        return Exit.OK
    output.complain(f"{tick.outcome}: {tick.why_now}")
    return Exit.OK if tick.outcome == "waiting" else Exit.REFUSED


@subcommand(
    BY_ACTION["backfill_schedule"].command,
    BY_ACTION["backfill_schedule"].help,
    _NAME,
    argument("since", metavar="FROM", type=moment, help="a time, or a duration before now"),
    argument("until", metavar="TO", type=moment, help="a time, or a duration before now"),
    CONFIRMING,
    ACTING,
    REVISION,
)
def backfill_command(options: Namespace, output: Output) -> int:
    with acting(options):
        planned = verbs.plan_backfill(options.name, options.since, options.until)
    count = plural(len(planned.moments), "run")
    if options.dry_run:
        output.line(f"{count} would be started, {planned.existing} of the moments have one already")
        return Exit.OK
    if not options.yes:
        need_terminal("a backfill starts many runs: look with --dry-run, then say --yes")
        confirm(output, f"Start {count} of the schedule {options.name}?")
    with acting(options):
        ticks = verbs.backfill(options.name, options.since, options.until)
    for tick in ticks:
        if tick.run_id:
            output.id(tick.run_id)
        else:
            output.complain(f"{tick.moment.isoformat()}: {tick.outcome}: {tick.why}")
    return Exit.OK


_SETTINGS: Final = ("zone", "overlap", "catch_up", "window", "jitter")
_ARGUMENTS: Final = (
    argument("--zone", metavar="ZONE", help='the zone of local times, "Europe/Berlin"; UTC by default'),
    argument("-q", "--queue", metavar="NAME", help="another queue than the workflow's"),
    argument("--overlap", choices=OVERLAPS, help="while the run of an earlier tick runs"),
    argument("--catch-up", choices=CATCH_UPS, help="which missed moments are made up for"),
    argument("--window", type=duration, metavar="DURATION", help="make up for no moment longer ago than this"),
    argument("--jitter", type=duration, metavar="DURATION", help="put each tick off by a part of this"),
    KEYWORDS,
)


@subcommand(
    "create-schedule",
    "Create a schedule that operators own.",
    _NAME,
    argument("workflow", metavar="WORKFLOW"),
    option(RULE),
    argument("arguments", nargs="*", metavar="ARG", type=json_value, help=JSON_HELP),
    *_ARGUMENTS,
    ACTING,
    REVISION,
)
def create_command(options: Namespace, output: Output) -> int:
    with acting(options):
        made = verbs.create(
            options.name,
            options.workflow,
            options.rule,
            args=options.arguments,
            kwargs=dict(options.keyword),
            queue=options.queue or "",
            **{name: getattr(options, name) for name in _SETTINGS},
        )
    output.say(f'The schedule "{made.name}" is created; its next moment is {made.next_at}.')
    return Exit.OK


@subcommand(
    BY_ACTION["edit_schedule"].command,
    BY_ACTION["edit_schedule"].help,
    _NAME,
    option(replace(RULE, default=None)),
    argument("--arg", action="append", metavar="ARG", type=json_value, help="all arguments, each given again"),
    argument("--no-window", action="store_true", help="make up for any missed moment"),
    *_ARGUMENTS,
    ACTING,
    REVISION,
)
def edit_command(options: Namespace, output: Output) -> int:
    with acting(options):
        edited = verbs.edit(
            options.name,
            rule=options.rule,
            queue=options.queue,
            args=options.arg,
            kwargs=dict(options.keyword) or None,
            no_window=options.no_window,
            **{name: getattr(options, name) for name in _SETTINGS},
        )
    output.say(f'The schedule "{edited.name}" is changed; its next moment is {edited.next_at}.')
    return Exit.OK
