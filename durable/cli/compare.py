"""`durable compare`: two runs side by side, place by place."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.conf import conf
from durable.inspection.comparison import Comparison, Difference, Side, compare_runs
from durable.inspection.database import reading
from durable.inspection.humanize import span
from durable.inspection.wording import display_location
from durable.listings import history
from durable.listings.shapes import Seen, data_of
from durable.models import Run


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("left", metavar="ID")
    parser.add_argument("right", metavar="OTHER", help="for example the run that a replay has made")
    parser.add_argument("--payloads", action="store_true", help="compare the outputs and the inputs too")
    parser.add_argument("--all", action="store_true", help="places that are the same, too")
    add_format(parser)


def _compare(options: Namespace, output: Output) -> int:
    with reading():
        runs = []
        for run_id in (options.left, options.right):
            run = Run.objects.using(conf.DATABASE).filter(pk=run_id).defer("input", "output").first()
            if run is None:
                output.complain(f'there is no run "{run_id}"')
                return Exit.REFUSED
            runs.append(run)
        start: int | None = 0
        differing = 0
        while start is not None:
            found = compare_runs(*runs, with_payloads=options.payloads, start=start)
            rows = [each for each in found.rows if each.differs or options.all]
            differing += sum(bool(each.differs) for each in rows)
            _print(output, found, rows)
            start = found.next_start
    output.say(f"{differing} of {found.total} places differ")
    return Exit.OK


def _print(output: Output, found: Comparison, rows: list[Difference]) -> None:
    if found.inputs is not None and output.format == "json":
        output.json({"inputs": list(found.inputs)})
    if output.format == "ids":
        for each in rows:
            output.id(each.location)
    elif output.format == "json":
        for each in rows:
            output.json(data_of(history.Difference, each, Seen(now=timezone.now())))
    elif rows:
        output.table(
            ["PLACE", "LEFT", "RIGHT", "DIFFERS"],
            (
                (display_location(each.location), _cell(each.left), _cell(each.right), ", ".join(each.differs))
                for each in rows
            ),
        )


def _cell(side: Side | None) -> Cell:
    if side is None:
        return Cell("nothing")
    words = [side.status, f"{side.attempts} attempts" if side.attempts > 1 else "", "by hand" if side.is_given else ""]
    took = "" if side.took is None else span(side.took.total_seconds())
    return Cell(", ".join(filter(None, [*words, took, side.error])), side.status)


COMPARE = Subcommand(
    name="compare",
    help="Compare two runs place by place, for example a run and its replay.",
    configure=_configure,
    run=_compare,
)
