"""An API with a quota, called by many runs while workers are killed.

`python -m tests.tools.limited_api` does it with 1,000 runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import printed

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres]

ROOT = Path(__file__).resolve().parent.parent.parent
#: More runs at once than slots, so that they wait for both; the allowance of a minute is that of the whole trial.
TRIAL = ["--runs=60", "--tenants=4", "--rate=20/s", "--allowed=1200", "--at-once=1", "--busy=0.2", "--kills=4"]


def test_an_api_never_sees_more_than_it_allows() -> None:
    """On servers of its own. The seed is printed; the same one kills the same workers."""
    shown = printed("tests.tools.limited_api", *TRIAL)
    assert "60 runs" in shown
    assert "4 kills" in shown
    assert "never more than allowed, nothing left" in shown
