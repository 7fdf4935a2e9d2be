"""`durable logs`: what a run has logged."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from django.utils import timezone

from durable.cli.arguments import add_format, duration
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand, found_run
from durable.core.records import ENDED
from durable.inspection.database import reading
from durable.inspection.run_logs import LEVELS, LoggedLine, is_kept, read_logs
from durable.inspection.wording import display_location
from durable.listings.history import LogLine
from durable.listings.shapes import Seen, data_of


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--level", choices=list(LEVELS), default="", metavar="LEVEL", help="without lines below it")
    parser.add_argument("--place", default="", metavar="LOCATION", help="lines of this location, and within it")
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="the newest N lines (default: 200)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="then print what is logged, until the run has ended"
    )
    parser.add_argument(
        "--interval",
        type=duration,
        metavar="DURATION",
        default="1 s",
        help="seconds between two looks of --follow (default: 1)",
    )
    add_format(parser, "table", "json")


def _logs(options: Namespace, output: Output) -> int:
    with reading():
        run = found_run(options.id)
        lines = read_logs(run, level=options.level, place=options.place, limit=max(1, options.limit))
    _print(lines, output)
    if not lines and not options.follow:
        output.say("Nothing is logged." if is_kept() else "Nothing is kept: switch on durable.logs.RunLogHandler.")
    last = lines[-1].id if lines else 0
    while options.follow:
        has_ended = run.state in ENDED
        time.sleep(options.interval.total_seconds())
        with reading():
            run = found_run(options.id)
            lines = read_logs(run, level=options.level, place=options.place, after=last, limit=1_000)
        _print(lines, output)
        last = lines[-1].id if lines else last
        if has_ended and not lines:  # the last lines are written shortly after the end
            break
    return Exit.OK


def _print(lines: Sequence[LoggedLine], output: Output) -> None:
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


LOGS = Subcommand(
    name="logs",
    help="Print what a run has logged, where durable.logs.RunLogHandler keeps it.",
    configure=_configure,
    run=_logs,
)
