"""The backend of production without Redis, in this thread, and a harness, for the tests of what is done to runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from durable import runtime
from durable.runtime import Runtime
from durable.store import Store
from durable.testing import Harness
from tests.support.stores import in_force

#: When the clock of `h` begins.
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def at(db: None) -> Iterator[Runtime]:
    with in_force() as at:
        yield at


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(now=NOW) as harness:
        yield harness


@pytest.fixture(params=["database", "memory"])
def store(request: pytest.FixtureRequest, db: None) -> Iterator[Store]:
    """Each store, in force."""
    with Harness() if request.param == "memory" else in_force():
        yield runtime.current().store
