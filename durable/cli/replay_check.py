"""`durable replay-check`: would the runs in the database, or in files, go on with the code at hand?"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from durable.cli.arguments import add_report_format
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--open", action="store_true", help="all open runs (default: these, and a sample of 1000 ended ones)"
    )
    parser.add_argument(
        "--ended", type=_number, metavar="N", help="a sample of N ended runs, with one of each sequence of operations"
    )
    parser.add_argument(
        "--workflow", nargs="+", action="extend", default=[], metavar="NAME", help="only runs of these workflows"
    )
    parser.add_argument(
        "--from",
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="all runs of these files, which `export --history` has written, instead of runs of the database",
    )
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="how many processes check runs")
    add_report_format(parser, "text", "json")
    parser.add_argument(
        "--diff",
        action="store_true",
        help="what the code decides otherwise than ended runs have (default: 1000 of them)",
    )


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"a number of runs is a whole number, not {text!r}")
    return int(text)


def _jobs(text: str) -> int:
    if (number := _number(text)) < 1:
        raise ArgumentTypeError("at least one process checks the runs")
    return number


def _check(options: Namespace, output: Output) -> int:
    from durable.cli.replay_checking import check  # not for every other subcommand

    return check(options, output)


REPLAY_CHECK = Subcommand(
    name="replay-check",
    help="Replay recorded runs with the code at hand, read-only, and tell which would diverge. Nothing is executed.",
    configure=_configure,
    run=_check,
)
