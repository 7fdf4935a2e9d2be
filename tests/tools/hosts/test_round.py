"""The short round of the study; `python -m tests.tools.hosts` makes all trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import printed
from tests.tools.hosts.servers import missing_packages

ROOT = Path(__file__).resolve().parents[3]
ROUND = ("kill", "switchover", "redis")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.postgres
def test_nothing_is_lost_while_hosts_fail() -> None:
    if missing := missing_packages():
        pytest.skip(f"not installed: {' '.join(missing)}")
    shown = printed("tests.tools.hosts", "--only", ",".join(ROUND))
    assert "every promise was kept" in shown
