"""`durable list`: runs by filters, newest first, page by page along the list's own keys."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_cause, add_format, add_tags, moment
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.core.mistakes import has_stopped
from durable.core.records import Hold, RunState
from durable.inspection import (
    InvalidCursorError,
    RunCriteria,
    RunOrder,
    RunPage,
    activities_of_runs,
    explain,
    is_undone,
    list_runs,
    parse_search,
    paused_of,
    paused_queues,
    reading,
    redacted_error,
    state_word,
)
from durable.inspection.forks import failed_places
from durable.inspection.humanize import relative
from durable.inspection.run_facts import checked_tags
from durable.inspection.runs import hides_alerts, settle_roots
from durable.models import Run

SHOWN = 50  # runs of a table without `--limit`
PAGE = 200  # runs that are read at a time


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "search", nargs="?", default="", help="an id, the beginning of one, or a part of an error's text"
    )
    states = [state.value for state in RunState]
    parser.add_argument(
        "-s", "--state", action="append", choices=states, default=[], metavar="STATE", help="may be given again"
    )
    parser.add_argument("-w", "--workflow", default="", metavar="NAME", help="runs of this workflow")
    parser.add_argument("-q", "--queue", default="", metavar="NAME", help="the workers' queue")
    parser.add_argument("--waiting", default="", metavar="QUEUE", help="runs that wait for a message of this queue")
    parser.add_argument(
        "--id-prefix", default="", metavar="TEXT", help="ids that begin with this; the list is by id then"
    )
    add_tags(parser, "runs with this tag; with all of them if it is given again")
    add_cause(parser)
    parser.add_argument(
        "--worker",
        default="",
        metavar="NAME",
        help="runs that this worker has, and runs that are failed since it had them",
    )
    parser.add_argument("--undone", action="store_true", help="runs whose end has undone their steps")
    parser.add_argument("--stuck", action="store_true", help="failed runs whose compensation has stopped")
    parser.add_argument("--diverged", action="store_true", help="runs that the workers' code does not fit")
    parser.add_argument("--attention", action="store_true", help="runs that do not go on well without a person")
    parser.add_argument(
        "--children",
        action="store_true",
        help="children too: else a list by state, workflow, queue, time or error has roots alone",
    )
    parser.add_argument(
        "--alerts",
        action="store_true",
        help="runs that send alerts and do bulks too: else a list by state, queue, time or error leaves them out, unless it is of failed "
        "runs alone",
    )
    parser.add_argument("--error", default="", metavar="TEXT", help="a part of the error's type or message")
    for name, what in {"created": "started", "finished": "ended"}.items():
        parser.add_argument(
            f"--{name}-since",
            type=moment,
            metavar="MOMENT",
            help=f'{what} since: "2 hours" (ago), or an ISO 8601 moment',
        )
        parser.add_argument(f"--{name}-until", type=moment, metavar="MOMENT", help=f"{what} before then")
    parser.add_argument(
        "-n", "--limit", type=int, metavar="N", help=f"how many (default: {SHOWN} in a table, else all)"
    )
    orders = [order.value for order in RunOrder if order is not RunOrder.BY_ID]
    parser.add_argument(
        "--sort",
        choices=orders,
        default=RunOrder.NEWEST.value,
        metavar="ORDER",
        help=f"the order: {', '.join(orders)}; a minus sign for the latest first. By finished_at ended runs alone are listed, "
        "by wake_at runs that go on by themselves (default: -created_at; write --sort=-finished_at with the equals sign)",
    )
    parser.add_argument("--cursor", help="go on where a list of the same filters has stopped")
    add_format(parser)


def _list(options: Namespace, output: Output) -> int:
    limit = options.limit if options.limit is not None else (SHOWN if output.format == "table" else None)
    if limit is not None and limit < 1:
        raise CommandError(f"--limit must be at least 1, not {limit}", returncode=Exit.USAGE)
    try:
        with reading():
            wanted = settle_roots(parse_search(options.search, _filter(options)))
    except ValueError as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    try:
        _print(output, wanted, RunOrder(options.sort), options.cursor, limit)
    except InvalidCursorError as error:
        raise CommandError(f"--cursor: {error}", returncode=Exit.USAGE) from error
    return Exit.OK


def _print(output: Output, wanted: RunCriteria, order: RunOrder, cursor: str | None, limit: int | None) -> None:
    now = timezone.now()
    if output.format == "table":
        _table(output, _page(wanted, order, cursor, limit or SHOWN), now)
        return
    with reading():
        paused = paused_queues()
    for run in islice(_all(wanted, order, cursor), limit):
        if output.format == "ids":
            output.id(run.id)
        else:
            output.json(run_data(run, now, paused.get(run.queue)))


def _filter(options: Namespace) -> RunCriteria:
    return RunCriteria(
        states=frozenset(options.state),
        workflow=options.workflow,
        queue=options.queue,
        created_from=options.created_since,
        created_until=options.created_until,
        finished_from=options.finished_since,
        finished_until=options.finished_until,
        id_prefix=options.id_prefix,
        error_text=options.error,
        waiting_queue=options.waiting,
        is_undone=options.undone,
        is_stuck=options.stuck,
        is_diverged=options.diverged,
        needs_attention=options.attention,
        only_roots=not options.children,
        hides_alerts=hides_alerts(unless=options.alerts),
        worker=options.worker,
        cause=options.cause,
        place=options.place,
        tags=checked_tags(options.tag),
    )


def _all(wanted: RunCriteria, order: RunOrder, cursor: str | None) -> Iterator[Run]:
    while True:
        page = _page(wanted, order, cursor, PAGE)
        yield from page.runs
        cursor = page.next_cursor
        if cursor is None:
            return


def _page(wanted: RunCriteria, order: RunOrder, cursor: str | None, limit: int) -> RunPage:
    with reading():
        return list_runs(wanted, order=order, cursor=cursor, limit=limit)


def _table(output: Output, page: RunPage, now: datetime) -> None:
    with reading():
        running, paused = activities_of_runs(page.runs, now), paused_of(page.runs, now)
        places = failed_places(page.runs)
    output.table(
        ["ID", "WORKFLOW", "STATE", "STARTED", "WHAT"],
        (
            (
                run.id,
                run.workflow,
                Cell(state_word(run), run.state),
                relative(run.created_at, now),
                explain(
                    run, now, running=running[run.id], paused=paused.get(run.queue), place=places.get(run.id, "")
                ).headline,
            )
            for run in page.runs
        ),
    )
    if page.is_window:
        output.say(f"Not all runs were looked through. Go on: --cursor {page.next_cursor}")
    elif page.next_cursor is not None:
        output.say(f"There are more: --cursor {page.next_cursor}, or --limit")
    elif not page.runs:
        output.say("No runs match.")


def run_data(run: Run, now: datetime, paused: Hold | None = None) -> dict[str, Any]:
    """Return a run without its payloads, as data. `paused` is the hold of its queue, None without any."""
    explanation = explain(run, now, paused=paused)
    return {
        "id": run.id,
        "workflow": run.workflow,
        "queue": run.queue,
        "state": run.state,
        "is_mistake": has_stopped(run.summary),
        "is_undone": is_undone(run),
        "created_at": _text(run.created_at),
        "started_at": _text(run.started_at),
        "finished_at": _text(run.finished_at),
        "wake_at": _text(run.wake_at),
        "parent": run.parent_id,
        "replay_of": run.replay_of_id,
        "error": redacted_error(run.workflow, run.error) or None,
        "what": explanation.headline,
        "needs_attention": explanation.needs_attention,
    }


def _text(then: datetime | None) -> str | None:
    return None if then is None else then.isoformat()


LIST = Subcommand(
    name="list", help="List runs, the newest first unless `--sort` says otherwise.", configure=_configure, run=_list
)
