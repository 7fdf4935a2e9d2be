"""`manage.py durable <subcommand>`: operate runs from a shell. `durable.cli` defines the subcommands."""

from __future__ import annotations

import os
import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.db import Error

from durable.cli.output import Exit, Output
from durable.cli.subcommand import RefusedError, Subcommand
from durable.cli.subcommands import SUBCOMMANDS
from durable.core.words import safe
from durable.execution.connections import DATABASE_TROUBLE
from durable.inspection.database import how_to_migrate, missing_migrations
from durable.inspection.reading import UnreadableError

EPILOG = """\
exit status: 0 done; 1 refused, not found, failed, or a person is needed; 2 wrong usage; 3 timed out;
4 the database does not answer, or lacks migrations. See docs/cli.md.
"""


class Command(BaseCommand):
    """Operate runs."""

    help = "Lists, explains and steers durable's runs."
    requires_system_checks = []
    stealth_options = ("subcommand",)

    def add_arguments(self, parser: CommandParser) -> None:
        _tell_safely(parser)
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        subparsers = parser.add_subparsers(dest="name", metavar="SUBCOMMAND", required=True)
        for each in SUBCOMMANDS:
            aliases = (each.alias,) if each.alias else ()
            subparser = subparsers.add_parser(each.name, aliases=aliases, help=each.help, description=each.help)
            _tell_safely(subparser)
            each.configure(subparser)
            subparser.set_defaults(subcommand=each)

    @no_translations  # programs read the output, and half of it would be in another language
    def handle(self, *args: Any, **options: Any) -> None:
        from argparse import Namespace

        subcommand: Subcommand = options["subcommand"]
        given = Namespace(**options)
        output = Output(
            self.stdout, self.stderr, getattr(given, "output", "table"), is_coloured=not options["no_color"]
        )
        try:
            status = self._run(subcommand, given, output)
        except BrokenPipeError:
            self._leave_pipe()
            status = Exit.PIPE
        if status:
            sys.exit(status)

    def _run(self, subcommand: Subcommand, given: Any, output: Output) -> int:
        try:
            status = subcommand.run(given, output)
            self.stdout.flush()
        except Error as error:
            if missing := self._missing_migrations():
                output.complain(f"migrations are missing: {', '.join(missing)}. Run: {how_to_migrate()}")
            elif isinstance(error, DATABASE_TROUBLE):
                output.complain(f"the database does not answer: {error}")
            else:
                raise
            return Exit.UNREACHABLE
        except UnreadableError as error:
            output.complain(error)
            return Exit.UNREACHABLE
        except RefusedError as error:
            output.complain(error)
            return Exit.REFUSED
        except CommandError as error:  # the error repeats arguments of the caller
            raise CommandError(safe(error, lines=True), returncode=error.returncode) from error
        except KeyboardInterrupt:
            output.complain("interrupted")
            return Exit.INTERRUPTED
        return status

    def _missing_migrations(self) -> list[str]:
        try:
            return missing_migrations()
        except Error:
            return []  # the database does not answer

    def _leave_pipe(self) -> None:
        """Discard the remaining output without an error, also at exit: the reader of the output has closed it."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell_safely(parser: CommandParser) -> None:
    """Escape control characters of the command line in the parser's error messages."""
    error = parser.error
    parser.error = lambda message: error(safe(message))  # type: ignore[method-assign]  # for this parser alone
