"""`durable export` and `import`: the records of runs, written to files and read from them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from durable.cli.output import Exit, Output
from durable.cli.subcommand import (
    ACTING,
    argument,
    exclusive,
    filters,
    found_run,
    given_ids,
    run_ids,
    selected_ids,
    shell_actor,
    subcommand,
)
from durable.core.errors import PayloadError, RunNotFoundError
from durable.inspection.export import written
from durable.inspection.selection import Filtered
from durable.listings.runs import RUN_FILTERS, criteria_of
from durable.operations.audit import REFUSALS, acting_as
from durable.operations.imports import Imported, import_run

if TYPE_CHECKING:
    from durable.histories import StoredHistory


# -- export


def _exported(options: Namespace) -> Iterable[str]:
    """Return the ids given, or those of the runs that the conditions select."""
    try:
        wanted = criteria_of({each.name: getattr(options, each.name) for each in RUN_FILTERS})
    except ValueError as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error
    if options.sample:
        return _sample(options)
    if wanted.is_empty != bool(options.ids):
        raise CommandError("give the ids of runs, or conditions, and not both", returncode=Exit.USAGE)
    return given_ids(options.ids) if options.ids else selected_ids(Filtered(wanted))


def _sample(options: Namespace) -> Iterable[str]:
    """Return the ids of one run of each way through the code."""
    from durable.replay_check.reading import one_of_each_path  # not for every other subcommand

    others = [each.name for each in RUN_FILTERS if each.name != "workflow" and getattr(options, each.name)]
    if options.ids or others:
        raise CommandError("--sample chooses the runs: give --workflow beside it, or nothing", returncode=Exit.USAGE)
    return one_of_each_path(options.workflow or [])


@subcommand(
    "export",
    "Write all that is recorded of runs, those named or those that meet conditions, as a JSON document on a line of each.",
    run_ids(may_be_none=True),
    filters(*RUN_FILTERS),
    argument("--no-payloads", action="store_true", help="leave out inputs, outputs, messages and tracebacks"),
    argument(
        "--history",
        action="store_true",
        help="write what a replay needs, in lines, for `replay-check --from`, `import` and tests: values as they are stored",
    ),
    argument(
        "--sample",
        action="store_true",
        help="instead of ids and conditions: the history of one run of each workflow, state and way through the code, redacted "
        "unless --decrypt is given; --workflow chooses workflows",
    ),
    exclusive(
        argument(
            "--redact",
            action="store_true",
            help="with --history: values by DURABLE['REDACT'], or placeholders of their types",
        ),
        argument("--decrypt", action="store_true", help="with --history: values as any machine can read them"),
    ),
)
def export_command(options: Namespace, output: Output) -> int:
    if options.sample:
        options.history, options.redact = True, not options.decrypt
    if options.history:
        if options.no_payloads:
            raise CommandError("a history without values cannot be replayed: use --redact", returncode=Exit.USAGE)
        return _export_histories(options, output)
    if options.redact or options.decrypt:
        raise CommandError("--redact and --decrypt are for --history", returncode=Exit.USAGE)
    status: int = Exit.OK
    for run_id in _exported(options):
        try:
            run = found_run(run_id)
        except CommandError as error:
            output.complain(error)
            status = Exit.REFUSED
            continue
        end = output.pieces(written(run, with_payloads=not options.no_payloads))
        if not end.endswith("true}"):
            output.say(f"The history of {run_id} is longer than what is exported of it.")
    return status


def _export_histories(options: Namespace, output: Output) -> int:
    from durable.histories import Values, written_history  # not for every other subcommand

    status: int = Exit.OK
    values = Values.REDACTED if options.redact else Values.DECRYPTED if options.decrypt else Values.STORED
    for run_id in _exported(options):
        try:
            for line in written_history(run_id, values):
                output.stdout.write(line)
        except RunNotFoundError:
            output.complain(f'there is no run "{run_id}"')
            status = Exit.REFUSED
        except PayloadError as error:
            # What was written of this run has no end, so that no reader takes it for whole.
            output.complain(
                f"the history of {run_id} cannot be exported, what was written of it is not a history: {error}"
            )
            return Exit.REFUSED
    return status


# -- import


@subcommand(
    "import",
    "Store runs of files of `export --history` in this project, to be looked at: open ones are paused.",
    argument("files", metavar="FILE", nargs="+", help="a file that `export --history` has written"),
    exclusive(
        argument("--as-prefix", metavar="PREFIX", default="", help="give the runs other ids: PREFIX before their own"),
        argument("--keep-ids", action="store_true", help="give the runs their own ids (this is the default)"),
    ),
    argument("--dry-run", action="store_true", help="check everything, say what would be done, store nothing"),
    ACTING,
)
def import_command(options: Namespace, output: Output) -> int:
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
        subjects=history.subjects,
        is_trial=options.dry_run,
    )
