"""The work of `durable replay-check`. Its arguments are in `durable.cli.code_checks`, which every command imports."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Part:
    """Runs that are checked in one way: with `with_decision`, compared with what the code would decide."""

    with_decision: bool
    has_open: bool
    ended: int  # at most so many ended runs of the database
    report: Report = field(default_factory=Report)


def _parts(options: Namespace) -> list[_Part]:
    """Return what is checked. The text of a comment says both what would stop and what would be decided otherwise."""
    ended = _ENDED if options.ended is None else options.ended
    if options.diff and options.output == "markdown":
        still_open = _Part(with_decision=False, has_open=True, ended=0)
        return [still_open, _Part(with_decision=True, has_open=False, ended=ended)]
    is_all = not options.open and options.ended is None
    has_open = options.open or (is_all and not options.diff)
    return [_Part(with_decision=options.diff, has_open=has_open, ended=ended if is_all or options.ended else 0)]


def check(options: Namespace, output: Output) -> int:
    parts = _parts(options)
    if options.files and (options.open or options.ended is not None):
        raise CommandError("--from checks all runs of the files: leave out --open and --ended", returncode=Exit.USAGE)
    problem = ""
    try:
        _check_parts(options, output, parts)
    except KeyboardInterrupt:
        _tell(options, output, parts)
        raise
    except HistoryFileError as error:
        problem = str(error)
    except Error as error:
        problem = f"could not check: {type(error).__name__}: {error}"
    except BrokenProcessPool:
        problem = (
            "could not check: one of the processes could not begin, or was killed: by the system for its memory, or by the code "
            "of a workflow. What it has printed is above; with --jobs 1 there is one process, which prints more"
        )
    _tell(options, output, parts)
    if problem:
        output.complain(problem)
        return Exit.USAGE
    reports = [each.report for each in parts]
    if any(each.findings or each.decisions for each in reports):
        return Exit.REFUSED
    return Exit.USAGE if any(each.unchecked for each in reports) else Exit.OK


def _check_parts(options: Namespace, output: Output, parts: Sequence[_Part]) -> None:
    facts = Facts.of_project() if options.files else Facts.of_database()
    if not options.files:
        _check_names(options.workflow, facts.renames)
    options.workflow = with_other_names(options.workflow, facts.renames)
    for each in parts:
        if options.files:
            _check_all(options, output, each, None, partial(check_recorded, facts=facts), _of_files(options, each))
        else:
            total, run_ids = _chosen(options, output, each)
            _check_all(options, output, each, total, partial(check_stored, facts=facts), run_ids)
        each.report.is_complete = True


def _check_names(names: list[str], renames: Sequence[Rename | Alias]) -> None:
    others = {each: with_other_names([each], renames) for each in names}
    unknown = [each for each in names if not any(name in registry.registry for name in others[each])]
    if unknown and (missing := set(unknown).difference(workflows_with_runs())):
        raise CommandError(
            f"neither the code nor the database has a workflow {', '.join(sorted(missing))}", returncode=Exit.USAGE
        )


def _chosen(options: Namespace, output: Output, part: _Part) -> tuple[int, Iterator[str]]:
    """Return how many runs to check, and their ids."""
    count, opened = open_runs(options.workflow) if part.has_open else (0, iter(()))
    most, sample = sampled_runs(options.workflow, part.ended)
    if len(sample) < most:
        output.say(
            f"{len(sample):,} of {plural(most, 'ended run')} are checked, with one of each sequence of operations"
        )

    def both() -> Iterator[str]:
        yield from opened
        yield from sample

    return count + len(sample), both()


def _of_files(options: Namespace, part: _Part) -> Iterator[RecordedRun]:
    """Yield the runs in the files. Only of ended ones is the outcome known, with which the code is compared."""
    for each in read_files(options.files):
        is_ended = each.run.state in ENDED
        is_wanted = is_ended if part.with_decision else part.ended or not is_ended
        if is_wanted and (not options.workflow or each.run.workflow in options.workflow):
            yield each.recorded


def _check_all(
    options: Namespace, output: Output, part: _Part, total: int | None, checking: Check, runs: Iterator[Any]
) -> None:
    """Check the runs. `total` is their number, None if that is not known."""
    report = part.report
    verdicts: Iterator[Verdict | None] = (
        checking(runs, with_decision=part.with_decision)
        if options.jobs == 1
        else in_processes(checking, runs, options.jobs, with_decision=part.with_decision)
    )
    told = time.monotonic()
    for verdict in verdicts:
        report.add(verdict)
        if (now := time.monotonic()) - told >= _EVERY:
            told = now
            of = f"{report.checked:,} of {plural(total, 'run')}" if total is not None else plural(report.checked, "run")
            output.say(f"{of} checked, {len(report.findings):,} would diverge")


def _tell(options: Namespace, output: Output, parts: Sequence[_Part]) -> None:
    report, *others = (each.report for each in parts)
    if output.format == "markdown":
        from durable.replay_check.markdown import comment

        output.stdout.write(comment(report, *others))
        return
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
