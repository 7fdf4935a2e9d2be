"""`python -m durable.lint`, for hooks that run before a commit: without settings, and without Django being set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BROKEN = """\
import random
from durable import Context, workflow


@workflow(name="hooks.broken")
def broken(ctx: Context) -> None:
    ctx.step(f"draw {random.random()}", print)
"""


def linted(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What the entry of the hook does, with nothing in the environment."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    python, *entry = hook["entry"].split()
    assert python == "python"
    command = [sys.executable, *entry, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False)


def test_what_breaks_a_rule_fails_the_commit(tmp_path: Path) -> None:
    file = tmp_path / "workflows.py"
    file.write_text(BROKEN)
    done = linted(file)
    assert done.returncode == 1, done.stderr
    first, why, advice = done.stdout.splitlines()
    assert first.startswith(f"{file}:7: error W131: ")
    assert first.endswith("(hooks.broken)")
    assert why.strip()
    assert advice.strip()
    assert linted(file, "--ignore", "W131").returncode == 0


def test_an_unknown_finding_to_ignore_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = linted(tmp_path, "--ignore", "W999")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no finding 'W999'; there are W100, W101, " in done.stderr
    assert linted(tmp_path, "--ignore", "W100", "--ignore", "W190").returncode == 0  # these are of files, not of rules


def test_what_breaks_none_passes(tmp_path: Path) -> None:
    (tmp_path / "workflows.py").write_text(BROKEN.replace("random.random()", "1"))
    done = linted(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_escape_sequence_of_a_file_s_name_reaches_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "\x1b[31mred.py"
    file.write_text(BROKEN)
    done = linted(file)
    assert done.returncode == 1
    assert "\\u001b[31mred.py" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_path_that_is_not_there_is_named() -> None:
    done = linted("nowhere.py")
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr
