"""`durable rates`, `set-rate`, `take-back-rate`, `close-limit`, `open-limit`: what begins when, and what is closed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting, add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.core.duration import later, parse_duration
from durable.inspection import reading
from durable.inspection.humanize import moment
from durable.inspection.rates import RateKeySummary, RateSummary, list_rates
from durable.operations import rates
from durable.operations.audit import acting_as
from durable.operations.audited import REFUSALS


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


def _name(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the limit")


def _configure_set(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("rate", metavar="RATE", help='how many units may begin in each period, such as "500/min"')
    parser.add_argument(
        "--burst", type=int, default=1, metavar="N", help="how many units may begin at once after a pause"
    )
    add_acting(parser)


def _configure_take_back(parser: ArgumentParser) -> None:
    _name(parser)
    add_acting(parser)


def _configure_close(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("duration", metavar="DURATION", help='for how long, such as "10 minutes"')
    parser.add_argument("--key", default="", metavar="KEY", help="close this key alone")
    add_acting(parser)


def _configure_open(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--key", default="", metavar="KEY", help="open this key, which was closed alone")
    add_acting(parser)


def _acting(verb: Callable[[Namespace], str]) -> Callable[[Namespace, Output], int]:
    """Return the subcommand of a verb that tells what it has done."""

    def run(options: Namespace, output: Output) -> int:
        try:
            with acting_as(shell_actor(options.user), reason=options.reason):
                done = verb(options)
        except REFUSALS as error:
            output.complain(error)
            return Exit.REFUSED
        except ValueError as error:
            raise CommandError(str(error), returncode=Exit.REFUSED) from error
        output.say(done)
        return Exit.OK

    return run


def _set(options: Namespace) -> str:
    rates.set_rate(options.name, options.rate, options.burst)
    return f'The limit "{options.name}" has the rate {options.rate}, deploys included.'


def _take_back(options: Namespace) -> str:
    rates.take_back_rate(options.name)
    return f'The limit "{options.name}" has the rate again that the code says.'


def _close(options: Namespace) -> str:
    now = timezone.now()
    until = later(now, parse_duration(options.duration), "a closing")
    rates.close_limit(options.name, until, key=options.key)
    return f'The limit "{options.name}" is closed until {moment(until, now)}.'


def _open(options: Namespace) -> str:
    rates.open_limit(options.name, key=options.key)
    return f'The limit "{options.name}" is open.'


RATES = Subcommand(
    name="rates",
    help="List the rates of limits: how many attempts wait, until when a key is reserved, and what is closed.",
    configure=_configure,
    run=_run,
)
SET_RATE = Subcommand(
    name="set-rate",
    help="Let a limit have another rate, while attempts wait for their moments.",
    configure=_configure_set,
    run=_acting(_set),
)
TAKE_BACK_RATE = Subcommand(
    name="take-back-rate",
    help="Let a limit have the rate again that the code gives it.",
    configure=_configure_take_back,
    run=_acting(_take_back),
)
CLOSE_LIMIT = Subcommand(
    name="close-limit",
    help="Let nothing of a limit's rate begin for a time.",
    configure=_configure_close,
    run=_acting(_close),
)
OPEN_LIMIT = Subcommand(
    name="open-limit",
    help="Open a limit that is closed: attempts that wait begin at its rate.",
    configure=_configure_open,
    run=_acting(_open),
)
