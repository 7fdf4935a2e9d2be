"""`durable causes` and `note`: why runs are failed, and what operators say of a cause."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.operations.audit import REFUSALS, acting_as
from durable.operations.causes import note


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


NOTE = Subcommand(
    name="note",
    help="Tell other operators something about a cause of failed runs.",
    configure=_configure_note,
    run=_note,
)
