"""The subcommands of the verbs on named things: `durable pause-queue`, `set-limit`, `close-limit` and others.

The verbs are those of `durable.operations.catalogue`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.utils import timezone

from durable.cli.output import Exit, Output
from durable.cli.schedules import BACKFILL, EDIT, told_of_tick
from durable.cli.subcommand import (
    Subcommand,
    acting,
    add_acting,
    add_option,
    add_revision,
    confirm,
    need_terminal,
    refusable,
)
from durable.core.duration import later, parse_duration
from durable.inspection.humanize import moment, plural
from durable.operations import catalogue
from durable.operations.catalogue import LIMIT, RATE
from durable.operations.options import Option, Until
from durable.operations.verbs import Subject, Verb

_BY_HAND: Final = {"edit_schedule": EDIT, "backfill_schedule": BACKFILL}


def subcommands(*subjects: Subject) -> Iterator[Subcommand]:
    """Yield the subcommands of the verbs on these subjects."""
    for verb in catalogue.VERBS:
        if verb.on in subjects:
            configure, run = partial(_configure, verb), partial(_run, verb)
            yield _BY_HAND.get(verb.action) or Subcommand(
                name=verb.command, help=verb.help, configure=configure, run=run
            )


def _configure(verb: Verb, parser: ArgumentParser) -> None:
    what = "limit" if verb.on in (LIMIT, RATE) else verb.on.name
    parser.add_argument("name", metavar=verb.on.metavar, help=f"the name of the {what}")
    for each in verb.asked:
        add_option(parser, each)
    if verb.asks:
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_acting(parser)
    add_revision(parser)


def _run(verb: Verb, options: Namespace, output: Output) -> int:
    now = timezone.now()
    if verb.asks and not options.yes:
        need_terminal(f"say --yes: {verb.loses}")
        confirm(output, verb.asks.format(name=options.name))
    with refusable():
        given = {each.name: _value(each, getattr(options, each.name), now) for each in verb.options}
    with acting(options):
        result = verb.call(options.name, **given)
    if verb.action == "run_schedule":
        return told_of_tick(result, output)
    output.say(verb.said.format(name=options.name, result=_told(result, now), **given))
    return Exit.OK


def _value(option: Option, given: Any, now: datetime) -> Any:
    """Convert the value of an option for the verb. Raises ValueError."""
    return later(now, parse_duration(given), "a closing") if isinstance(option, Until) else given


def _told(result: Any, now: datetime) -> Any:
    if isinstance(result, int):
        return plural(result, "run")
    return moment(result, now) if isinstance(result, datetime) else result
