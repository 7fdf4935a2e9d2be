"""`durable schedules`: list the schedules, show one, and write those of the code into the database."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection.database import reading
from durable.inspection.schedules import ScheduleSummary, clock_of_rule, find_schedule, list_schedules, ticks_of
from durable.listings.schedules import Schedule, ScheduleDetail
from durable.listings.shapes import Seen, data_of
from durable.operations.schedules.sync import differences, synchronise

#: By state, the word whose colour it has.
_COLOURS = {"gone": "note", "paused": "paused", "late": "problem", "waiting": "note", "active": ""}
_OUTCOMES = {"started": "ok", "skipped": "note", "missed": "problem", "refused": "refused", "waiting": "note"}
_TICKS = 20


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="show this one with its newest ticks")
    parser.add_argument("-w", "--workflow", default="", metavar="NAME", help="schedules of this workflow alone")
    parser.add_argument("--sync", action="store_true", help="write the schedules of the code into the database")
    parser.add_argument("--dry-run", action="store_true", help="with --sync: say what would be written")
    add_format(parser, "table", "json")


def _run(options: Namespace, output: Output) -> int:
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
        "" if not each.moments or each.schedule.paused else _moment(each, each.moments[0]),
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
            "waits": "" if row.waiting_at is None else f"for the end of {row.last_run_id}",
            "next": ", ".join(_moment(found, each) for each in found.moments),
        }
    )
    output.table(
        ["MOMENT (UTC)", "OUTCOME", "RUN", "WHY"],
        (
            (
                f"{each.moment:%Y-%m-%d %H:%M:%S}",
                Cell(each.outcome, _OUTCOMES.get(each.outcome, "")),
                each.run_id,
                each.why,
            )
            for each in ticks_of(found.schedule, _TICKS)
        ),
    )
    return Exit.OK


def _moment(each: ScheduleSummary, moment: datetime) -> str:
    """Return the moment in UTC and by the clock of the rule."""
    clock = clock_of_rule(each.schedule, moment, UTC)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC{f' ({clock})' if clock else ''}"


SCHEDULES = Subcommand(
    name="schedules",
    help="List the schedules with their next moments, or show one with its newest ticks. With --sync, write those that "
    "the code declares into the database.",
    configure=_configure,
    run=_run,
)
