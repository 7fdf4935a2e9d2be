"""`durable limits`: what is held, who waits, and how many slots a limit allows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection import reading
from durable.inspection.humanize import span
from durable.inspection.limits import LimitSummary, list_limits


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="show this one alone")
    add_format(parser, "table", "json")


def _run(options: Namespace, output: Output) -> int:
    now = timezone.now()
    with reading():
        found = list_limits(options.name)
    if options.name and not found:
        raise CommandError(f'no limit has the name "{options.name}"', returncode=Exit.REFUSED)
    if output.format == "json":
        for each in found:
            output.json(_data(each))
        return Exit.OK
    rows: list[list[Cell | object]] = []
    for each in found:
        most = f"{each.at_once} (the code says {each.code_says})" if each.is_overridden else str(each.at_once)
        for key in each.keys:
            waits = "" if key.oldest_at is None else span((now - key.oldest_at).total_seconds())
            rows.append([each.name, key.key, most, key.held, key.waiting, waits])
        if not each.keys:
            rows.append([each.name, "", most, 0, 0, ""])
    output.table(["LIMIT", "KEY", "AT ONCE", "HELD", "WAITING", "OLDEST"], rows)
    if not found:
        output.say("There is no limit yet: one appears when a run first wants a slot of it.")
    return Exit.OK


def _data(limit: LimitSummary) -> dict[str, object]:
    return {
        "name": limit.name,
        "at_once": limit.at_once,
        "code_says": limit.code_says,
        "is_overridden": limit.is_overridden,
        "keys": [
            {
                "key": each.key,
                "held": each.held,
                "waiting": each.waiting,
                "oldest_at": None if each.oldest_at is None else each.oldest_at.isoformat(),
            }
            for each in limit.keys
        ],
    }


LIMITS = Subcommand(
    name="limits",
    help="List the limits: how many slots are held of each key, how many runs wait, and for how long.",
    configure=_configure,
    run=_run,
)
