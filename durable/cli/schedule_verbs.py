"""`durable create-schedule`, `edit-schedule`, `backfill`, and what became of `run-schedule`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from django.core.management.base import CommandError

from durable.cli.actor import shell_actor
from durable.cli.arguments import (
    JSON_HELP,
    add_acting,
    add_confirming,
    add_option,
    add_revision,
    confirmed,
    duration,
    is_at_terminal,
    json_value,
    keyword,
    moment,
)
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.core.registry import UnknownWorkflowError
from durable.inspection.humanize import plural
from durable.models import Tick
from durable.operations.audit import REFUSALS, acting_as
from durable.operations.catalogue import BY_ACTION, RULE
from durable.operations.schedules import verbs
from durable.schedules import CATCH_UPS, OVERLAPS


def _acting(act: Callable[[Namespace, Output], int], options: Namespace, output: Output) -> int:
    try:
        with acting_as(shell_actor(options.user), reason=options.reason, expected=options.revision):
            return act(options, output)
    except (*REFUSALS, UnknownWorkflowError) as error:
        output.complain(error)
        return Exit.REFUSED


def _subcommand(
    name: str,
    help: str,
    act: Callable[[Namespace, Output], int],
    configure: Callable[[ArgumentParser], None],
) -> Subcommand:
    def configure_all(parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the name of the schedule")
        configure(parser)
        add_acting(parser)
        add_revision(parser)

    return Subcommand(name=name, help=help, configure=configure_all, run=partial(_acting, act))


def told_of_tick(tick: Tick, output: Output) -> int:
    """Print what became of a tick; return the exit status."""
    if tick.outcome == "started":
        output.id(tick.run_id)
        return Exit.OK
    output.complain(f"{tick.outcome}: {tick.why}")
    return Exit.OK if tick.outcome == "waiting" else Exit.REFUSED


def _configure_backfill(parser: ArgumentParser) -> None:
    parser.add_argument("since", metavar="FROM", type=moment, help="a time, or a duration before now")
    parser.add_argument("until", metavar="TO", type=moment, help="a time, or a duration before now")
    add_confirming(parser)


def _backfill(options: Namespace, output: Output) -> int:
    planned = verbs.plan_backfill(options.name, options.since, options.until)
    count = plural(len(planned.moments), "run")
    if options.dry_run:
        output.line(f"{count} would be started, {planned.existing} of the moments have one already")
        return Exit.OK
    if not options.yes:
        if not is_at_terminal():
            raise CommandError(
                "a backfill starts many runs: look with --dry-run, then say --yes", returncode=Exit.USAGE
            )
        if not confirmed(output, f"Start {count} of the schedule {options.name}?"):
            raise CommandError("nothing was done", returncode=Exit.REFUSED)
    for tick in verbs.backfill(options.name, options.since, options.until):
        if tick.run_id:
            output.id(tick.run_id)
        else:
            output.complain(f"{tick.moment.isoformat()}: {tick.outcome}: {tick.why}")
    return Exit.OK


def _configure_options(parser: ArgumentParser) -> None:
    parser.add_argument("--zone", metavar="ZONE", help='the zone of local times, "Europe/Berlin"; UTC by default')
    parser.add_argument("-q", "--queue", metavar="NAME", help="another queue than the workflow's")
    parser.add_argument("--overlap", choices=OVERLAPS, help="while the run of an earlier tick runs")
    parser.add_argument("--catch-up", choices=CATCH_UPS, help="which missed moments are made up for")
    parser.add_argument(
        "--window", type=duration, metavar="DURATION", help="make up for no moment longer ago than this"
    )
    parser.add_argument("--jitter", type=duration, metavar="DURATION", help="put each tick off by a part of this")
    parser.add_argument(
        "-k", "--keyword", action="append", default=[], type=keyword, metavar="NAME=VALUE", help="may be given again"
    )


def _configure_create(parser: ArgumentParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW")
    add_option(parser, RULE)
    parser.add_argument("arguments", nargs="*", metavar="ARG", type=json_value, help=JSON_HELP)
    _configure_options(parser)


def _create(options: Namespace, output: Output) -> int:
    made = verbs.create(
        options.name,
        options.workflow,
        options.rule,
        args=options.arguments,
        kwargs=dict(options.keyword),
        queue=options.queue or "",
        zone=options.zone,
        overlap=options.overlap,
        catch_up=options.catch_up,
        window=options.window,
        jitter=options.jitter,
    )
    output.say(f'The schedule "{made.name}" is created; its next moment is {made.next_at}.')
    return Exit.OK


def _configure_edit(parser: ArgumentParser) -> None:
    add_option(parser, replace(RULE, default=None))
    parser.add_argument(
        "--arg", action="append", metavar="ARG", type=json_value, help="all arguments, each given again"
    )
    parser.add_argument("--no-window", action="store_true", help="make up for any missed moment")
    _configure_options(parser)


def _edit(options: Namespace, output: Output) -> int:
    edited = verbs.edit(
        options.name,
        rule=options.rule,
        zone=options.zone,
        queue=options.queue,
        args=options.arg,
        kwargs=dict(options.keyword) or None,
        overlap=options.overlap,
        catch_up=options.catch_up,
        window=options.window,
        no_window=options.no_window,
        jitter=options.jitter,
    )
    output.say(f'The schedule "{edited.name}" is changed; its next moment is {edited.next_at}.')
    return Exit.OK


CREATE = _subcommand("create-schedule", "Create a schedule that operators own.", _create, _configure_create)
EDIT = _subcommand(BY_ACTION["edit_schedule"].command, BY_ACTION["edit_schedule"].help, _edit, _configure_edit)
BACKFILL = _subcommand(
    BY_ACTION["backfill_schedule"].command, BY_ACTION["backfill_schedule"].help, _backfill, _configure_backfill
)
