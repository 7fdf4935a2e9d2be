"""Runs on a clock of the test's own, and what operators are told of the database as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime

import pytest
from django.utils import timezone

from durable.inspection import history_counts
from durable.inspection.findings import Finding, collect_findings
from durable.inspection.workers import worker_overview
from tests.admin import flows
from tests.admin.conftest import Stage, staged


@pytest.fixture
def stage(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(flows, "SWITCH", dict.fromkeys(flows.SWITCH, False))
    monkeypatch.setattr(history_counts, "_results", OrderedDict())  # the runs of all tests have one name
    with staged() as stage:
        yield stage


def findings(kind: str, now: datetime | None = None) -> list[Finding]:
    """The findings whose kind begins so."""
    return [each for each in collect_findings(now or timezone.now(), worker_overview()) if each.kind.startswith(kind)]
