"""The chaos in its short form; `python -m tests.chaos --seconds N` goes on for as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.processes import printed

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
    shown = printed("tests.chaos", *options)
    assert "survived all" in shown
