"""The backend of production without Redis, in this thread, for the tests of what is done to runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable.runtime import Runtime
from tests.support.stores import in_force


@pytest.fixture
def at(db: None) -> Iterator[Runtime]:
    with in_force() as at:
        yield at
