"""The work of `durable replay-check`. Its arguments are in `durable.cli.code_checks`, which every command imports."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error

from durable.cli.output import Exit, Output
from durable.core import registry
from durable.core.names.renames import Alias, Rename
from durable.core.records import ENDED
from durable.histories import HistoryFileError, read_files
from durable.inspection.humanize import plural
from durable.renames.operations import with_other_names
from durable.replay_check import RecordedRun
from durable.replay_check.checking import Check, Facts, check_recorded, check_stored, in_processes
from durable.replay_check.findings import Report, Verdict
from durable.replay_check.reading import open_runs, sampled_runs, workflows_with_runs

_ENDED: Final = 1_000  # ended runs to check by default
_EVERY: Final = 2.0  # seconds between two lines of progress


def check(options: Namespace, output: Output) -> int:
    """Check the runs that the options name, and return the exit status."""
    report = Report()
    if options.files and (options.open or options.ended is not None):
        raise CommandError("--from checks all runs of the files: leave out --open and --ended", returncode=Exit.USAGE)
    try:
        if options.files:
            facts = Facts.of_project()
            options.workflow = with_other_names(options.workflow, facts.renames)
            _check_all(options, output, None, partial(check_recorded, facts=facts), _of_files(options), report)
        else:
            facts = Facts.of_database()
            _check_names(options.workflow, facts.renames)
            options.workflow = with_other_names(options.workflow, facts.renames)
            total, run_ids = _chosen(options, output)
            _check_all(options, output, total, partial(check_stored, facts=facts), run_ids, report)
    except HistoryFileError as error:
        _tell(options, output, report)
        output.complain(error)
        return Exit.USAGE
    except KeyboardInterrupt:
        _tell(options, output, report)
        raise
    except Error as error:
        _tell(options, output, report)
        output.complain(f"could not check: {type(error).__name__}: {error}")
        return Exit.USAGE
    except BrokenProcessPool:
        _tell(options, output, report)
        output.complain(
            "could not check: one of the processes could not begin, or was killed: by the system for its memory, or by the code "
            "of a workflow. What it has printed is above; with --jobs 1 there is one process, which prints more"
        )
        return Exit.USAGE
    report.is_complete = True
    _tell(options, output, report)
    if report.findings or report.decisions:
        return Exit.REFUSED
    return Exit.USAGE if report.unchecked else Exit.OK


def _check_names(names: list[str], renames: Sequence[Rename | Alias]) -> None:
    others = {each: with_other_names([each], renames) for each in names}
    unknown = [each for each in names if not any(name in registry.registry for name in others[each])]
    if unknown and (missing := set(unknown).difference(workflows_with_runs())):
        raise CommandError(
            f"neither the code nor the database has a workflow {', '.join(sorted(missing))}", returncode=Exit.USAGE
        )


def _chosen(options: Namespace, output: Output) -> tuple[int, Iterator[str]]:
    """Return how many runs to check, and their ids."""
    is_all = not options.open and options.ended is None
    number = _ENDED if is_all else options.ended or 0
    count, opened = open_runs(options.workflow) if options.open or (is_all and not options.diff) else (0, iter(()))
    most, sample = sampled_runs(options.workflow, number)
    if len(sample) < most:
        output.say(
            f"{len(sample):,} of {plural(most, 'ended run')} are checked, with one of each sequence of operations"
        )

    def both() -> Iterator[str]:
        yield from opened
        yield from sample

    return count + len(sample), both()


def _of_files(options: Namespace) -> Iterator[RecordedRun]:
    """Yield the runs in the files; with --diff only ended ones, because only their outcome is known."""
    for each in read_files(options.files):
        if options.workflow and each.run.workflow not in options.workflow:
            continue
        if not options.diff or each.run.state in ENDED:
            yield each.recorded


def _check_all(
    options: Namespace, output: Output, total: int | None, checking: Check, runs: Iterator[Any], report: Report
) -> None:
    """Check the runs. `total` is their number, None if that is not known."""
    verdicts: Iterator[Verdict | None] = (
        checking(runs, with_decision=options.diff)
        if options.jobs == 1
        else in_processes(checking, runs, options.jobs, with_decision=options.diff)
    )
    told = time.monotonic()
    for verdict in verdicts:
        report.add(verdict)
        if (now := time.monotonic()) - told >= _EVERY:
            told = now
            of = f"{report.checked:,} of {plural(total, 'run')}" if total is not None else plural(report.checked, "run")
            output.say(f"{of} checked, {len(report.findings):,} would diverge")


def _tell(options: Namespace, output: Output, report: Report) -> None:
    if output.format == "json":
        output.json(report.as_data())
        return
    for each in report.sentences():
        output.line(each)
    if options.diff:
        output.say(
            f"Compared with {plural(report.checked, 'ended run')}: {report.whole:,} to the end, the others up to the first "
            "operation that differs or that the record does not answer."
        )
        return
    diverging = f"{len(report.findings):,} would diverge" if report.findings else "none would diverge"
    unchecked = f", {len(report.unchecked):,} could not be checked" if report.unchecked else ""
    so_far = "" if report.is_complete else " so far"
    output.say(f"{plural(report.checked, 'run')} checked{so_far}, {diverging}{unchecked}.")
