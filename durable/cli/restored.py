"""`durable restored`: whether the database went back in time, which runs do things again, and the decision on them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Cell, Exit, Output
from durable.cli.subcommand import (
    ACTING,
    REVISION,
    acting,
    argument,
    confirm,
    exclusive,
    formats,
    need_terminal,
    subcommand,
)
from durable.inspection.humanize import moment, plural, span
from durable.inspection.undone import state_word
from durable.listings.restored import RESTORED
from durable.listings.shapes import Seen, data_of
from durable.operations.catalogue import BY_ACTION
from durable.operations.restored import GO_ON, HOLD, UNKNOWN, Decided, carry_on, decide

_VERB: Final = BY_ACTION["restored"]


@subcommand(
    _VERB.command,
    _VERB.help,
    argument("name", nargs="?", metavar=_VERB.on.metavar, help="the name of the database; any other one is left alone"),
    exclusive(
        argument(
            "--hold", action="store_const", dest="how", const=HOLD, help="pause all open runs, then let workers go on"
        ),
        argument(
            "--unknown",
            action="store_const",
            dest="how",
            const=UNKNOWN,
            help="ask about the next steps of all open runs before they are executed: their verify, or a person",
        ),
        argument("--go-on", action="store_const", dest="how", const=GO_ON, help="let workers go on with all of them"),
    ),
    argument(
        "--copy",
        action="store_true",
        help="with one of these: this database is a copy of another one that goes on, and gets a name of its own",
    ),
    argument("-y", "--yes", action="store_true", help="do not ask"),
    ACTING,
    REVISION,
    formats("table", "json"),
)
def restored_command(options: Namespace, output: Output) -> int:
    seen = Seen(now=timezone.now())
    page = RESTORED.read(seen)
    if options.how is None:
        if options.copy:
            raise CommandError("--copy goes with --hold, --unknown or --go-on", returncode=Exit.USAGE)
        if output.format == "json":
            output.json(data_of(RESTORED.page, page, page.seen or seen))
        else:
            _show(page.about, page, seen, output)
        return Exit.REFUSED if page.about.is_behind or page.about.is_holding else Exit.OK
    if not options.yes:
        need_terminal("say --yes: look at it without an option first")
        confirm(output, f"In the database {page.about.place}: {_WHAT[options.how]} let workers go on?")
    with acting(options):
        decided = decide(options.name or page.about.name, options.how, as_copy=options.copy)
        while not decided.is_done:
            output.say(f"{plural(decided.paused + decided.in_doubt, 'run')} so far")
            more = carry_on(decided.name)
            decided = replace(more, paused=decided.paused + more.paused, in_doubt=decided.in_doubt + more.in_doubt)
    _tell(decided, options.how, output)
    return Exit.OK


_WHAT: Final = {
    HOLD: "pause all open runs, and",
    UNKNOWN: "put all open runs in doubt, and",
    GO_ON: "with all open runs as they are,",
}


def _tell(decided: Decided, how: str, output: Output) -> None:
    if how == HOLD:
        output.say(f"{plural(decided.paused, 'run')} paused. Workers claim runs again; resume what may go on.")
    elif how == UNKNOWN:
        output.say(
            f"{plural(decided.in_doubt, 'run')} in doubt. Workers claim runs again, and ask about their next steps: "
            "`durable runs --held` lists what waits for a person."
        )
    else:
        output.say("Workers claim runs again, within seconds.")


def _show(found: Any, page: Any, seen: Seen, output: Output) -> None:
    now = seen.now
    output.line(f"database     {found.place}{f', named {found.name}' if found.name else ''}")
    output.line(f"as of        {moment(found.as_of, now) if found.as_of else 'no sweep has run yet'}")
    mark = f"{moment(found.mark_at, now)}, in {found.mark_place}" if found.mark_at else "there is none"
    output.line(f"mark         {found.problem or mark} {f' (kept in {found.mark_in})' if found.is_kept else ''}")
    if found.decided_at is not None:
        lost = span((found.went_back_from - found.went_back_to).total_seconds())
        output.line(f"went back    by {lost}, decided {moment(found.decided_at, now)}")
    output.line()
    if found.is_holding:
        output.line("Open runs are being paused or put in doubt. Workers claim nothing until all of them are.")
    if not found.is_behind:
        output.line("The database is not behind its mark." if found.is_kept else _OFF)
        return
    if found.is_another_history:
        output.line("Two databases with this name are in use. Workers claim nothing in this one.")
    else:
        output.line(f"The database went back in time, by {span(found.lost.total_seconds())}. Workers claim nothing.")
    output.line(f"Open runs: {found.open}. Due before the mark was written, so that they moved since: {found.moved}.")
    rows = (
        (
            run.id,
            Cell(state_word(run), run.state),
            run.workflow,
            moment(run.wake_at, now),
            page.seen.explanation(run).text,
        )
        for run in found.runs
    )
    output.table(["ID", "STATE", "WORKFLOW", "DUE", "DOES"], rows)
    output.line()
    output.line(
        "Decide: --hold pauses all open runs first, --go-on lets them do again what they did, and --unknown asks"
    )
    output.line("about their next steps before they do them again: their verify, or a person.")
    output.line("If this database is a copy of one that goes on, add --copy.")


_OFF: Final = 'No mark is kept: name a file outside of the database in DURABLE["MARK"], or use Redis.'
