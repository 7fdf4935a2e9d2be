"""`durable stack`: where the steps of a run are at this moment."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Final

from django.utils import timezone

from durable import operations
from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting, duration
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand, found_run
from durable.core.errors import OperationError
from durable.inspection.activities import RunningStack, activities_of, read_stack
from durable.inspection.database import reading
from durable.models import Run
from durable.operations.audit import acting_as

_LOOK_EVERY: Final = 0.2  # seconds


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--location", default="", help="the step at this location only (default: all that run)")
    parser.add_argument(
        "--wait",
        type=duration,
        metavar="DURATION",
        default="15 s",
        help="how long to wait for the worker (default: 15 s)",
    )
    add_acting(parser)


def _stack(options: Namespace, output: Output) -> int:
    run = found_run(options.id)
    try:
        with acting_as(shell_actor(options.user), reason=options.reason):
            operations.take_stack(run.id, location=options.location)
    except OperationError as error:
        output.complain(error)
        return Exit.REFUSED
    with reading():
        steps = [each for each in activities_of(run, timezone.now()) if options.location in ("", each.location)]
    until = time.monotonic() + options.wait.total_seconds()
    status: int = Exit.OK
    for step in steps:
        found = _awaited(run, step.location, until)
        output.line(f"{step.location}:")
        if found is None:
            output.line("  it has ended")
        elif found.taken_at is None:
            output.complain(f"the worker {step.worker} has not answered")
            status = Exit.REFUSED
        else:
            output.text(found.text.rstrip())
    return status


def _awaited(run: Run, location: str, until: float) -> RunningStack | None:
    while True:
        with reading():
            found = read_stack(run, location, timezone.now())
        if found is None or found.taken_at is not None or time.monotonic() >= until:
            return found
        time.sleep(_LOOK_EVERY)


STACK = Subcommand(
    name="stack", help="Ask a run's worker where its steps are at this moment.", configure=_configure, run=_stack
)
