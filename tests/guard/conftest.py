"""A harness, and a memory of the guard's that no other test has filled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable.guard import events
from durable.testing import Harness


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness() as harness:
        yield harness


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_told", set())
