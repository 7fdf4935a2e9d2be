"""`durable running`: the steps that run now, the oldest first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format, number_up_to
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.inspection import ActivityPage, InvalidCursorError, RunningStep, list_activities, reading
from durable.inspection.humanize import span

_MOST = 200


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=number_up_to(_MOST), default=50, metavar="N", help=f"1 to {_MOST} steps (default: 50)"
    )
    parser.add_argument("--cursor", help="go on where a page ended")
    add_format(parser)


def _running(options: Namespace, output: Output) -> int:
    try:
        with reading():
            page = list_activities(timezone.now(), cursor=options.cursor, limit=options.limit)
    except InvalidCursorError as error:
        raise CommandError(str(error)) from None
    if output.format == "table":
        _table(output, page)
        return Exit.OK
    for step in page.steps:
        if output.format == "ids":
            output.id(step.run_id)
        else:
            output.json(_data(step))
    return Exit.OK


def _table(output: Output, page: ActivityPage) -> None:
    output.table(
        ["RUN", "WORKFLOW", "STEP", "ATTEMPT", "FOR", "COMPARED WITH", "WORKER"],
        (
            (
                step.run_id,
                step.workflow,
                f"{step.location} (rollback)" if step.is_rollback else step.location,
                step.attempt,
                f"{span(step.seconds)}{', hung' if step.is_hung else ''}",
                step.limits,
                step.worker,
            )
            for step in page.steps
        ),
    )
    if page.next_cursor is not None:
        output.say(f"There are more: --cursor {page.next_cursor}, or --limit")
    elif not page.steps:
        output.say("No step has run for more than a second.")


def _data(step: RunningStep) -> dict[str, Any]:
    usual = step.usual
    return {
        "run": step.run_id,
        "workflow": step.workflow,
        "queue": step.queue,
        "location": step.location,
        "kind": step.kind,
        "attempt": step.attempt,
        "worker": step.worker,
        "began_at": step.began_at.isoformat(),
        "seconds": step.seconds,
        "timeout": step.timeout,
        "p50": None if usual is None else usual.p50,
        "p95": None if usual is None else usual.p95,
        "is_hung": step.is_hung,
    }


RUNNING = Subcommand(
    name="running",
    help="List the steps that run now, the oldest first.",
    configure=_configure,
    run=_running,
)
