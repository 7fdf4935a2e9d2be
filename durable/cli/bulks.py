"""`durable bulk`: what has come of a bulk; and the options that make a bulk try a few runs first, or go slowly."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_format, duration
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.inspection.bulks import BulkSummary, failed_again, find_bulk, order_words, refusals
from durable.inspection.database import reading
from durable.inspection.explain_states import explain
from durable.inspection.wording import command
from durable.listings.operators import bulk_data
from durable.listings.shapes import Seen
from durable.operations import bulk
from durable.operations.audit import REFUSALS, acting_as
from durable.runtime import current

_SHOWN = 20  # runs of a group
_MOST = 10_000  # ids of runs that failed again


def add_canary(parser: ArgumentParser) -> None:
    """Add the options of a bulk in the background."""
    parser.add_argument(
        "--canary", type=int, metavar="N", help="in the background: try the first N runs, and wait for them"
    )
    parser.add_argument(
        "--stop-after", type=int, metavar="N", help="stop if N of these fail again (1), until go-on or stop-here"
    )
    parser.add_argument(
        "--within", type=duration, metavar="DURATION", help="stop, too, if one is still under way then (10 min)"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="in the background: at most N runs a second")


def is_slow(options: Namespace) -> bool:
    """Return whether the bulk has a canary or a rate. Raises CommandError for options that need a canary."""
    if options.canary is None and (options.stop_after is not None or options.within is not None):
        raise CommandError("--stop-after and --within are options of --canary", returncode=Exit.USAGE)
    return options.canary is not None or options.rate is not None


def start_bulk(verb: str, selection: Any, options: Namespace, output: Output) -> int:
    """Start the bulk in the background, and print its id."""
    within: timedelta | None = options.within
    given: dict[str, Any] = {
        each: value for each in bulk.BULK_OPTIONS.get(verb, ()) if (value := getattr(options, each))
    }
    try:
        canary = None if options.canary is None else bulk.Canary.of(options.canary, options.stop_after, within)
        with acting_as(shell_actor(options.user), reason=options.reason):
            report = bulk.apply(verb, selection, canary=canary, rate=options.rate, expected=options.expect, **given)
    except REFUSALS as error:
        output.complain(error)
        return Exit.REFUSED
    if output.format == "json":
        output.json({"bulk": report.bulk_id})
    else:
        output.id(report.bulk_id)
    output.say(f"It is done in the background: {command('bulk', report.bulk_id)}")
    return Exit.OK


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the bulk's id")
    add_format(parser)


def _bulk(options: Namespace, output: Output) -> int:
    with reading():
        found = find_bulk(options.id)
        if found is None:
            output.complain(f'there is no bulk "{options.id}"')
            return Exit.REFUSED
        if output.format == "json":
            output.json(bulk_data(found, refusals(found.id), Seen(now=current().now())))
        elif output.format == "ids":
            for run_id in failed_again(found.id, found.verb).order_by("pk").values_list("pk", flat=True)[:_MOST]:
                output.id(run_id)
        else:
            _print(output, found)
    return Exit.OK


def _print(output: Output, found: BulkSummary) -> None:
    output.line(f"{found.headline}.")
    if found.order is not None:
        output.line(order_words(found.order, found.began_at))
    if found.stopped is not None:
        for verb in ("go-on", "stop-here"):
            output.line(f"  {command(verb, found.id)}")
    if found.started:
        output.line(f"children that are started again: {found.started}")
    for group in refusals(found.id):
        output.line(f"{group.outcome}: {group.number}. {group.reason}")
        for run_id in group.runs:
            output.line(f"  {run_id}")
    if found.again:
        output.line(f"failed again: {found.again}")
        runs = failed_again(found.id, found.verb).defer("input", "output").order_by("pk")
        for run in runs[:_SHOWN]:
            output.line(f"  {run.id}: {explain(run, current().now()).headline}")


BULK = Subcommand(
    name="bulk",
    help="Show what has come of a bulk; with -o ids, the runs that have failed again.",
    configure=_configure,
    run=_bulk,
)
