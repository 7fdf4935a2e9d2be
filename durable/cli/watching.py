"""Watching a run: `durable show --follow` prints its changes, `logs` its log, `stack` the stacks of its steps, `stream`
what a step emits.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from durable import operations
from durable.cli.output import Exit, Output
from durable.cli.subcommand import (
    ACTING,
    RUN,
    Argument,
    acting,
    argument,
    duration,
    formats,
    found_run,
    subcommand,
)
from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.inspection.activities import RunningStack, activities_of, read_stack
from durable.inspection.events import LEVELS, LoggedLine, is_kept, read_logs
from durable.inspection.explanation import explain
from durable.inspection.payloads import of_stream, pretty
from durable.inspection.progress import progress_of
from durable.inspection.reading import reading
from durable.inspection.shown import status_data, status_of
from durable.inspection.wording import display_location
from durable.listings.history import LogLine
from durable.listings.shapes import Seen, data_of
from durable.models import Entry, Run
from durable.streams import reading as streams

Skeleton = dict[str, tuple[str, int]]  # location: status, attempts


def following(meaning: str) -> tuple[Argument, Argument]:
    """Return `-f`, and the interval between two queries of the run."""
    what = "seconds between two looks of --follow (default: 1)"
    interval = argument("--interval", type=duration, metavar="DURATION", default="1 s", help=what)
    return argument("-f", "--follow", action="store_true", help=meaning), interval


# -- changes


def follow(run: Run, output: Output, interval: float) -> int:
    """Print a line for each change since `run` was read, until the run has ended; return the exit status for its
    end.
    """
    seen, shown, said = _entries(run), _in_words(run, timezone.now()), status_of(run)
    revision: object = None
    while run.state not in ENDED:
        time.sleep(interval)
        now = timezone.now()
        with reading():
            run = found_run(run.id)
            told = status_of(run)
            newest = (progress_of(run).revision, told)
            if newest == revision:
                continue
            revision, entries = newest, _entries(run)
        for location, (status, attempts) in _changes(seen, entries):
            again = f", attempt {attempts}" if attempts > 1 else ""
            data = {"location": location, "status": status, "attempts": attempts}
            _tell(output, now, data, f"{display_location(location)}: {status}{again}")
        seen = entries
        if told is not None and told != said:
            said = told
            _tell(output, now, {"run": run.id, "status": status_data(run)}, told.words)
        if (current := _in_words(run, now)) != shown:
            shown = current
            state, what = current
            data = {"run": run.id, "state": state, "what": what}
            _tell(output, now, data, f"run is {state}{f': {what}' if what else ''}")
    return Exit.OK if run.state == RunState.COMPLETED else Exit.REFUSED


def _entries(run: Run) -> Skeleton:
    """Return the skeleton of the history, in the order in which the entries began."""
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.pk).order_by("ordinal")
    rows = found.values_list("location", "metadata__status", "metadata__attempts")
    return {location: (status, attempts) for location, status, attempts in rows}


def _changes(before: Skeleton, after: Skeleton) -> Iterator[tuple[str, tuple[str, int]]]:
    return ((location, entry) for location, entry in after.items() if before.get(location) != entry)


def _in_words(run: Run, now: datetime) -> tuple[str, str]:
    return run.state, explain(run, now).headline if run.state != RunState.RUNNING else ""


def _tell(output: Output, now: datetime, data: Mapping[str, Any], text: str) -> None:
    """Print a change: its data with the time, or its text behind the time."""
    if output.format == "json":
        output.json({"at": now.isoformat(), **data})
        return
    output.line(f"{timezone.localtime(now):%H:%M:%S}  {text}")
    output.stdout.flush()


# -- what it logs


@subcommand(
    "logs",
    "Print what a run has logged, where durable.logs.RunLogHandler keeps it.",
    RUN,
    argument("--level", choices=list(LEVELS), default="", metavar="LEVEL", help="without lines below it"),
    argument("--place", default="", metavar="LOCATION", help="lines of this location, and within it"),
    argument("--limit", type=int, default=200, metavar="N", help="the newest N lines (default: 200)"),
    *following("then print what is logged, until the run has ended"),
    formats("table", "json"),
)
def logs_command(options: Namespace, output: Output) -> int:
    with reading():
        run = found_run(options.id)
        lines = read_logs(run, level=options.level, place=options.place, limit=max(1, options.limit))
    _print_lines(lines, output)
    if not lines and not options.follow:
        output.say("Nothing is logged." if is_kept() else "Nothing is kept: switch on durable.logs.RunLogHandler.")
    last = lines[-1].id if lines else 0
    while options.follow:
        has_ended = run.state in ENDED
        time.sleep(options.interval.total_seconds())
        with reading():
            run = found_run(options.id)
            lines = read_logs(run, level=options.level, place=options.place, after=last, limit=1_000)
        _print_lines(lines, output)
        last = lines[-1].id if lines else last
        if has_ended and not lines:  # the last lines are written shortly after the end
            break
    return Exit.OK


def _print_lines(lines: Sequence[LoggedLine], output: Output) -> None:
    for line in lines:
        if output.format == "json":
            output.json(data_of(LogLine, line, Seen(now=line.at)))
        else:
            place = f"{display_location(line.location)}: " if line.location else ""
            first, *rest = line.text.split("\n")
            output.line(f"{timezone.localtime(line.at):%Y-%m-%d %H:%M:%S} {line.level:8} {place}{first}")
            for each in rest:  # indented: no line can be taken for another record
                output.line(f"    {each}")
    output.stdout.flush()


# -- what a step emits


@subcommand(
    "stream",
    "Print what a running step emits, as it comes.",
    RUN,
    argument("location", metavar="LOCATION"),
    argument("--after", default="", metavar="ID", help="behind the chunk with this id (as --output json prints it)"),
    argument("--timeout", type=duration, metavar="DURATION", help="how long to wait for the next chunk"),
    formats("text", "json"),
)
def stream_command(options: Namespace, output: Output) -> int:
    with reading():
        run = found_run(options.id)
    try:
        for chunk in streams.read(run.id, options.location, options.after, options.timeout):
            shown = of_stream(run.workflow, options.location, chunk.event, chunk.value)
            if output.format == "json":
                output.json({"event": chunk.event, "value": shown, "attempt": chunk.attempt, "id": chunk.id})
            elif chunk.event == "restart":
                output.say(f"Attempt {chunk.attempt} begins; what came before is void.")
            elif chunk.event == "failed":
                output.complain(str(shown))
            elif chunk.event == "chunk":
                output.text(shown if isinstance(shown, str) else pretty(shown))
            else:
                output.say("The step has ended.")
            output.stdout.flush()
            if chunk.event == "failed":
                return Exit.REFUSED
    except TimeoutError as error:
        output.complain(str(error))
        return Exit.TIMEOUT
    return Exit.OK


# -- where its steps are

_LOOK_EVERY: Final = 0.2  # seconds


@subcommand(
    "stack",
    "Ask a run's worker where its steps are at this moment.",
    RUN,
    argument("--location", default="", help="the step at this location only (default: all that run)"),
    argument(
        "--wait",
        type=duration,
        metavar="DURATION",
        default="15 s",
        help="how long to wait for the worker (default: 15 s)",
    ),
    ACTING,
)
def stack_command(options: Namespace, output: Output) -> int:
    run = found_run(options.id)
    with acting(options):
        operations.take_stack(run.id, location=options.location)
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
