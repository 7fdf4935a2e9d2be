"""`durable import`: recorded runs of files, to be looked at in this project."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.operations.audit import REFUSALS, acting_as
from durable.operations.imports import Imported, import_run

if TYPE_CHECKING:
    from durable.histories import StoredHistory


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file that `export --history` has written")
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument(
        "--as-prefix", metavar="PREFIX", default="", help="give the runs other ids: PREFIX before their own"
    )
    ids.add_argument("--keep-ids", action="store_true", help="give the runs their own ids (this is the default)")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, say what would be done, store nothing"
    )
    add_acting(parser)


def _import(options: Namespace, output: Output) -> int:
    from durable.histories import HistoryFileError, read_files  # not for every other subcommand

    status: int = Exit.OK
    actor = shell_actor(options.user)
    try:
        for each in read_files(options.files):
            try:
                with acting_as(actor, reason=options.reason):
                    started, left_out = _imported(each, options)
            except REFUSALS as error:
                output.complain(f"{options.as_prefix}{each.run.id} was not imported: {error}")
                status = Exit.REFUSED
                continue
            for step in left_out:
                output.complain(
                    f'{started.id}: the rollback handler {step.handler!a} of the step "{step.location}" was left out: the code '
                    "at hand does not name it there. A rollback does not undo this step"
                )
            output.id(started.id)
            if not started.is_new:
                output.say(f"{started.id} was imported before, with the same content")
            elif options.dry_run:
                output.say(f"{started.id} would be imported")
    except HistoryFileError as error:
        output.complain(error)
        return Exit.USAGE
    return status


def _imported(history: StoredHistory, options: Namespace) -> Imported:
    from durable.histories import digest_of, moved_history

    run, entries, messages = moved_history(history, options.as_prefix)
    return import_run(
        run,
        entries,
        messages,
        origin=f"exported {history.exported_at:%Y-%m-%d %H:%M:%S %Z} of run {history.run.id}, {history.source}",
        digest=digest_of(history),
        tags=history.tags,
        tags_at_start=history.tags_at_start,
        is_trial=options.dry_run,
    )


IMPORT = Subcommand(
    name="import",
    help="Store runs of files of `export --history` in this project, to be looked at: open ones are paused.",
    configure=_configure,
    run=_import,
)
