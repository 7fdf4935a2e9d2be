"""`durable rates`: what begins when, and what is closed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection import reading
from durable.inspection.humanize import moment
from durable.inspection.limits import RateKeySummary, RateSummary, list_rates


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="show this one alone")
    add_format(parser, "table", "json")


def _run(options: Namespace, output: Output) -> int:
    now = timezone.now()
    with reading():
        found = list_rates(now, options.name)
    if options.name and not found:
        raise CommandError(f'no limit with a rate has the name "{options.name}"', returncode=Exit.REFUSED)
    if output.format == "json":
        for each in found:
            output.json(_data(each))
        return Exit.OK
    rows: list[list[Cell | object]] = []
    for each in found:
        rate = f"{each.rate} (the code says {each.code_says})" if each.is_overridden else str(each.rate)
        for key in each.keys:
            next_at = "" if key.next_at is None else moment(key.next_at, now)
            closed = "" if key.closing is None else f"{moment(key.closing.until, now)} by {key.closing.by}"
            refused = "" if key.last_refused is None else f"{key.refused:,}, last {moment(key.last_refused.at, now)}"
            rows.append([each.name, key.key, rate, key.waiting, next_at, closed, refused])
        if not each.keys:
            rows.append([each.name, "", rate, 0, "", "", ""])
    output.table(["LIMIT", "KEY", "RATE", "WAITING", "NEXT", "CLOSED UNTIL", "REFUSED STARTS"], rows)
    if not found:
        output.say("There is no rate yet: one appears when an attempt first wants units of it.")
    return Exit.OK


def _data(limit: RateSummary) -> dict[str, object]:
    return {
        "name": limit.name,
        "rate": limit.rate.text,
        "burst": limit.rate.burst,
        "code_says": str(limit.code_says),
        "is_overridden": limit.is_overridden,
        "keys": [_key(each) for each in limit.keys],
    }


def _key(key: RateKeySummary) -> dict[str, object]:
    return {
        "key": key.key,
        "waiting": key.waiting,
        "next_at": None if key.next_at is None else key.next_at.isoformat(),
        "reserved_until": None if key.reserved_until is None else key.reserved_until.isoformat(),
        "closed_until": None if key.closing is None else key.closing.until.isoformat(),
        "closed_by": "" if key.closing is None else key.closing.by,
        "closed_why": "" if key.closing is None else key.closing.reason,
        "last_minute": key.last_minute,
        "refused": key.refused,
        "refused_at": None if key.last_refused is None else key.last_refused.at.isoformat(),
        "refused_workflow": "" if key.last_refused is None else key.last_refused.workflow,
    }


RATES = Subcommand(
    name="rates",
    help="List the rates of limits: how many attempts wait, until when a key is reserved, and what is closed.",
    configure=_configure,
    run=_run,
)
