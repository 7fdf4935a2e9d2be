"""`durable lint`: tell where workflows break a rule, reading their files as text."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import CommandError

from durable.cli.arguments import add_report_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.inspection.humanize import plural
from durable.inspection.workflow_code import files_of_workflows

if TYPE_CHECKING:
    from durable.lint import Finding


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, or directories of them (default: the files of all workflows)"
    )
    add_report_format(parser, "text", "json", "sarif")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="ID", help="leave this finding out; may be given again"
    )


def _lint(options: Namespace, output: Output) -> int:
    from durable.lint import lint  # not for every other subcommand
    from durable.lint.engine import as_sarif

    findings = [each for each in lint(_paths(options.paths)) if each.id not in options.ignore]
    if output.format == "json":
        output.json([each.as_data() for each in findings])
    elif output.format == "sarif":
        output.json(as_sarif(findings))
    else:
        _print(findings, output)
    return Exit.REFUSED if any(each.level != "hint" for each in findings) else Exit.OK


def _paths(given: list[str]) -> list[Path]:
    missing = [each for each in given if not os.path.lexists(each)]
    if missing:
        raise CommandError(
            f"there is no file or directory {', '.join(missing)}: give paths that exist, or none for the files of all workflows",
            returncode=Exit.USAGE,
        )
    return [Path(each) for each in given] or files_of_workflows()


def _print(findings: list[Finding], output: Output) -> None:
    from durable.lint import LEVELS, RULES

    why = {rule.id: rule.why for rule in RULES}
    for each in findings:
        workflow = f" ({each.workflow})" if each.workflow else ""
        output.line(f"{each.path}:{each.line}: {each.level} {each.id}: {each.message}{workflow}")
        if each.id in why:
            output.line(f"    {why[each.id]}")
        output.line(f"    {each.fix}")
    counts = Counter(each.level for each in findings)
    output.say(", ".join(plural(counts[level], level) for level in LEVELS if counts[level]) or "No findings.")


LINT = Subcommand(
    name="lint",
    help="Tell where workflows break a rule of writing workflows. Files are read as text; nothing in them is run.",
    configure=_configure,
    run=_lint,
)
