"""`durable lint` and `replay-check`: do workflows break a rule, and would runs continue with this code? And `skills`,
which copies what agents that write code have to know of durable into a project.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from django.core.management.base import CommandError

import durable
from durable.cli.output import Exit, Output
from durable.cli.subcommand import RefusedError, argument, formats, subcommand, whole_number
from durable.inspection.humanize import plural
from durable.inspection.workflow_code import files_of_workflows

if TYPE_CHECKING:
    from durable.lint import Finding

# -- lint


def _finding(text: str) -> str:
    from durable.lint.engine import known_id  # not for every other subcommand

    return known_id(text)


@subcommand(
    "lint",
    "Tell where workflows break a rule of writing workflows. Files are read as text; nothing in them is run.",
    argument(
        "paths", nargs="*", metavar="PATH", help="files, or directories of them (default: the files of all workflows)"
    ),
    formats("text", "json", "sarif", also="--format"),
    argument(
        "--ignore",
        action="append",
        type=_finding,
        default=[],
        metavar="ID",
        help="leave this finding out; may be given again",
    ),
)
def lint_command(options: Namespace, output: Output) -> int:
    from durable.lint import lint  # not for every other subcommand
    from durable.lint.engine import as_sarif

    findings = [each for each in lint(_paths(options.paths)) if each.id not in options.ignore]
    if output.format == "json":
        output.json([each.as_data() for each in findings])
    elif output.format == "sarif":
        output.json(as_sarif(findings))
    else:
        _print_findings(findings, output)
    return Exit.REFUSED if any(each.level != "hint" for each in findings) else Exit.OK


def _paths(given: list[str]) -> list[Path]:
    missing = [each for each in given if not os.path.lexists(each)]
    if missing:
        raise CommandError(
            f"there is no file or directory {', '.join(missing)}: give paths that exist, or none for the files of all workflows",
            returncode=Exit.USAGE,
        )
    return [Path(each) for each in given] or files_of_workflows()


def _print_findings(findings: list[Finding], output: Output) -> None:
    from durable.lint import LEVELS
    from durable.lint.engine import as_lines

    for line in as_lines(findings):
        output.line(line)
    counts = Counter(each.level for each in findings)
    output.say(", ".join(plural(counts[level], level) for level in LEVELS if counts[level]) or "No findings.")


# -- replay-check


@subcommand(
    "replay-check",
    "Replay recorded runs with the code at hand, read-only, and report which would diverge. Nothing is executed.",
    argument("--open", action="store_true", help="all open runs (default: these, and a sample of 1000 ended ones)"),
    argument(
        "--ended",
        type=whole_number(0),
        metavar="N",
        help="a sample of N ended runs, with one of each sequence of operations",
    ),
    argument("--workflow", nargs="+", action="extend", default=[], metavar="NAME", help="only runs of these workflows"),
    argument(
        "--from",
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="all runs of these files, which `export --history` has written, instead of runs of the database",
    ),
    argument("--jobs", type=whole_number(), default=1, metavar="N", help="how many processes check runs"),
    formats("text", "json", "markdown", also="--format"),
    argument(
        "--diff",
        action="store_true",
        help="what the code decides otherwise than ended runs have (default: 1000 of them); with markdown, also which open "
        "runs would diverge",
    ),
)
def replay_check_command(options: Namespace, output: Output) -> int:
    from durable.cli.replay_checking import check  # not for every other subcommand

    return check(options, output)


# -- skills

#: Where a package has its skills, by a convention that several agents follow.
SKILLS: Final = Path(durable.__file__).parent / ".agents" / "skills"


@subcommand(
    "skills",
    "Copy the skill with which coding agents write workflows into a project.",
    argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(".agents/skills"),
        metavar="FOLDER",
        help="where the agent looks for skills, .claude/skills for example (default: .agents/skills)",
    ),
    argument("--force", action="store_true", help="write over files that have been changed"),
)
def skills_command(options: Namespace, output: Output) -> int:
    """Copy each file that differs. Nothing is written unless everything may be."""
    found = {options.folder / path.relative_to(SKILLS): path.read_bytes() for path in SKILLS.rglob("*.md")}
    other = {target: data for target, data in found.items() if not (target.is_file() and target.read_bytes() == data)}
    changed = sorted(str(each) for each in other if each.exists())
    if changed and not options.force:
        raise RefusedError(
            f"{', '.join(changed)} is not what this version of durable has: it is of another version, or was edited. "
            "Compare them, and repeat the command with --force"
        )
    try:
        for target, data in other.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    except OSError as error:
        raise RefusedError(f"cannot write the skill: {error}; name a folder that can be written") from error
    for target in sorted(found):
        output.say(f"{target}: {'written' if target in other else 'is up to date'}")
    return Exit.OK
