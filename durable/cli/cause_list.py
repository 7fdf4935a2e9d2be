"""`durable causes` and `note`: why runs are failed, and what operators say of a cause."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import datetime
from typing import Any

from django.utils import timezone

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting, add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.inspection import CauseSummary, list_causes, reading
from durable.inspection.humanize import relative
from durable.inspection.wording import display_place
from durable.operations.audit import acting_as
from durable.operations.audited import REFUSALS
from durable.operations.causes import note


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("--muted", action="store_true", help="muted causes too")
    add_format(parser)


def _causes(options: Namespace, output: Output) -> int:
    now = timezone.now()
    with reading():
        causes = list_causes(now, muted=None if options.muted else False)
    if output.format == "table":
        _table(output, causes, now)
        return Exit.OK
    for each in causes:
        if output.format == "ids":
            output.id(each.fingerprint)
        else:
            output.json(_data(each))
    return Exit.OK


def _table(output: Output, causes: list[CauseSummary], now: datetime) -> None:
    output.table(
        ["CAUSE", "RUNS", "PLACE", "ERROR", "WORKFLOWS", "SINCE", "LAST"],
        (
            (
                each.fingerprint,
                each.count,
                display_place(each.place) or "the workflow's own code",
                f"{each.error_type}: {each.pattern}" if each.pattern else each.error_type,
                ", ".join(each.workflows),
                "" if each.since is None else relative(each.since, now),
                "" if each.last_at is None else relative(each.last_at, now),
            )
            for each in causes
        ),
    )
    if not causes:
        output.say("No run is failed.")
    for each in causes:
        if each.noted_at is not None:
            who = f" by {each.noted_by}" if each.noted_by else ""
            output.say(f"{each.fingerprint}: noted {relative(each.noted_at, now)}{who}: {each.note}")


def _data(cause: CauseSummary) -> dict[str, Any]:
    return {
        "cause": cause.fingerprint,
        "place": cause.place,
        "error_type": cause.error_type,
        "pattern": cause.pattern,
        "count": cause.count.number,
        "is_capped": cause.count.is_capped,
        "first_seen_at": cause.first_seen_at.isoformat(),
        "since": None if cause.since is None else cause.since.isoformat(),
        "last_at": None if cause.last_at is None else cause.last_at.isoformat(),
        "workflows": list(cause.workflows),
        "is_muted": cause.is_muted,
        "note": cause.note,
        "noted_at": None if cause.noted_at is None else cause.noted_at.isoformat(),
        "noted_by": cause.noted_by,
    }


def _configure_note(parser: ArgumentParser) -> None:
    parser.add_argument("cause", metavar="CAUSE", help="the cause, as `durable causes` lists it")
    parser.add_argument("text", metavar="TEXT", help='the note, "" for none')
    add_acting(parser)


def _note(options: Namespace, output: Output) -> int:
    try:
        with acting_as(shell_actor(options.user), reason=options.reason):
            note(options.cause, options.text)
    except REFUSALS as error:
        output.complain(error)
        return Exit.REFUSED
    output.say("The note is saved." if options.text.strip() else "The cause has no note now.")
    return Exit.OK


CAUSES = Subcommand(
    name="causes",
    help="List the causes of failed runs, the newest first.",
    configure=_configure,
    run=_causes,
)
NOTE = Subcommand(
    name="note",
    help="Tell other operators something about a cause of failed runs.",
    configure=_configure_note,
    run=_note,
)
