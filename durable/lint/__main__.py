"""`python -m durable.lint PATH...`: the linter without a Django project, for hooks that run before a commit.

`manage.py durable lint` finds the files of a project's workflows by itself, and writes JSON and SARIF too.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from durable.lint.engine import as_lines, known_id, lint


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings, and return the exit status: 1 if one is an error or a warning."""
    parser = ArgumentParser(prog="python -m durable.lint", description="Tell where workflows break a rule.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, or directories of them")
    parser.add_argument(
        "--ignore", action="append", type=known_id, default=[], metavar="ID", help="leave this finding out"
    )
    given = parser.parse_args(arguments)
    if missing := [str(each) for each in given.paths if not each.exists()]:
        parser.error(f"there is no file or directory {', '.join(missing)}")
    findings = [each for each in lint(given.paths) if each.id not in given.ignore]
    for line in as_lines(findings):
        shown = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in line)  # of foreign names too
        sys.stdout.write(f"{shown}\n")
    return int(any(each.level != "hint" for each in findings))


if __name__ == "__main__":
    sys.exit(main())
