"""The chaos in its short form; `python -m tests.chaos --seconds N` goes on for as long as one likes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child_path import child_path

ROOT = Path(__file__).resolve().parent.parent.parent
CONCURRENCY = (1, 4)
#: By load. Of runs each kind of fault comes several times, of the others once: their faults are the same.
SECONDS = {"runs": 60, "families": 15, "flow": 5, "limits": 15}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("load", SECONDS)
def test_runs_of_every_kind_survive_chaos(load: str) -> None:
    """On servers of its own, which it restarts. The seed is printed; the same one strikes in the same order."""
    seed = random.SystemRandom().randrange(1 << 30)
    concurrency = random.SystemRandom().choice(CONCURRENCY)
    options = ["--seconds", str(SECONDS[load]), "--seed", str(seed), "--concurrency", str(concurrency), "--load", load]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
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
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "survived all" in done.stdout
