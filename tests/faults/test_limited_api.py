"""An API with a quota, called by many runs while workers are killed.

`python -m tests.tools.limited_api` does it with 1,000 runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child_path import child_path

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres]

ROOT = Path(__file__).resolve().parent.parent.parent
#: More runs at once than slots, so that they wait for both; the allowance of a minute is that of the whole trial.
TRIAL = ["--runs=60", "--tenants=4", "--rate=20/s", "--allowed=1200", "--at-once=1", "--busy=0.2", "--kills=4"]


def test_an_api_never_sees_more_than_it_allows() -> None:
    """On servers of its own. The seed is printed; the same one kills the same workers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.limited_api", *TRIAL],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")},
            "PYTHONPATH": child_path(),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "60 runs" in done.stdout
    assert "4 kills" in done.stdout
    assert "never more than allowed, nothing left" in done.stdout
