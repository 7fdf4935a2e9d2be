"""`durable children`: the children of a run, in the order of their starts, and their numbers by state and group."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.run_list import run_data
from durable.cli.subcommand import Subcommand, found_run
from durable.core.records import RunState
from durable.inspection import explain, paused_of, paused_queues, reading, state_word
from durable.inspection.family import ChildCursor, ChildRow, FamilyCounts, count_children, list_children
from durable.inspection.humanize import relative, thousands

SHOWN: Final = 50  # children of a table without `--limit`
PAGE: Final = 200  # children that are read at a time


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the parent's id")
    states = [state.value for state in RunState]
    parser.add_argument(
        "-s", "--state", action="append", choices=states, default=[], metavar="STATE", help="may be given again"
    )
    parser.add_argument("-g", "--group", metavar="LOCATION", help="the children of the group at this location")
    parser.add_argument(
        "-n", "--limit", type=int, metavar="N", help=f"how many (default: {SHOWN} in a table, else all)"
    )
    add_format(parser)


def _children(options: Namespace, output: Output) -> int:
    limit = options.limit if options.limit is not None else (SHOWN if output.format == "table" else None)
    if limit is not None and limit < 1:
        raise CommandError(f"--limit must be at least 1, not {limit}", returncode=Exit.USAGE)
    with reading():
        run, now = found_run(options.id), timezone.now()
    rows = islice(_all(run.id, options.state, options.group), limit)
    if output.format == "table":
        with reading():
            output.line(counted(count_children(run.id)) or "no children")
        _table(output, list(rows), now)
        return Exit.OK
    with reading():
        paused = paused_queues()
    for row in rows:
        if output.format == "ids":
            output.id(row.run.id)
        else:
            output.json(
                {
                    **run_data(row.run, now, paused.get(row.run.queue)),
                    "location": row.location,
                    "group": row.group or None,
                }
            )
    return Exit.OK


def _all(run_id: str, states: list[str], group: str | None) -> Iterator[ChildRow]:
    after: ChildCursor | None = None
    while True:
        with reading():
            page = list_children(run_id, states=states, group=group, after=after, limit=PAGE)
        yield from page.rows
        after = page.next_key
        if after is None:
            return


def _table(output: Output, rows: list[ChildRow], now: datetime) -> None:
    if not rows:
        return
    paused = paused_of([row.run for row in rows], now)
    output.table(
        ["ID", "WORKFLOW", "STATE", "LOCATION", "STARTED", "WHAT"],
        (
            (
                row.run.id,
                row.run.workflow,
                Cell(state_word(row.run), row.run.state),
                row.location,
                relative(row.run.created_at, now),
                explain(row.run, now, paused=paused.get(row.run.queue)).headline,
            )
            for row in rows
        ),
    )


def counted(counts: FamilyCounts) -> str:
    """Return the numbers in words, "1,000: 954 completed, 46 failed"; "" without children."""
    if not counts:
        return ""
    states = ", ".join(f"{thousands(number)} {state}" for state, number in counts.states.items())
    return f"{counts.total}: {states}"


CHILDREN = Subcommand(
    name="children",
    help="List the children of a run, and count them by state.",
    configure=_configure,
    run=_children,
)
