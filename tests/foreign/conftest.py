"""Commands of a project whose settings are those of the end-to-end tests and a few lines more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(child_environment: dict[str, str], tmp_path: Path) -> Command:
    """Run a command of `manage.py` until it ends: `command("USE_TZ = False", "check")`."""

    def run(lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "foreign_settings.py").write_text(f"from tests.e2e.settings import *\n{lines}\n")
        path = f"{child_environment['PYTHONPATH']}:{tmp_path}"  # behind the directory with which forked children begin
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=ROOT,
            env={
                **child_environment,
                "DJANGO_SETTINGS_MODULE": "foreign_settings",
                "PYTHONPATH": path,
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
