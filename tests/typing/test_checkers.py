"""What mypy --strict and pyright report of code that uses the public API: the mistakes, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_REPORT = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: ", re.MULTILINE)

Reports = dict[str, set[int]]


def _run(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 2 is a checker that did not check
    return done.stdout


def mypy(*files: Path) -> Reports:
    """The lines with errors of each file, under the project's configuration."""
    said = _run("mypy", "--config-file", "pyproject.toml", *map(str, files))
    assert re.search(r"^(Found \d+ error|Success)", said, re.MULTILINE), said
    reports: Reports = {}
    for found in _REPORT.finditer(said):
        reports.setdefault(Path(found["file"]).name, set()).add(int(found["line"]))
    return reports


def pyright(*files: Path) -> Reports:
    """The lines with errors of each file, in pyright's strict mode."""
    said = json.loads(_run("basedpyright", "--project", str(ROOT), "--outputjson", *map(str, files)))
    assert said["summary"]["filesAnalyzed"] == len(files), said["summary"]
    reports: Reports = {}
    for found in said["generalDiagnostics"]:
        if found["severity"] == "error":
            reports.setdefault(Path(found["file"]).name, set()).add(found["range"]["start"]["line"] + 1)
    return reports


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_reports_each_mistake_and_nothing_else(checker: Callable[..., Reports]) -> None:
    good, bad = HERE / "good.py", HERE / "bad.py"
    mistakes = {
        number for number, line in enumerate(bad.read_text().splitlines(), start=1) if re.search(r"  # \d+ [a-z]", line)
    }
    assert len(mistakes) > 30
    assert checker(good, bad) == {"bad.py": mistakes}
