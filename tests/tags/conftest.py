"""The backend of production without Redis, in this thread, on tables that are really written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable.runtime import Runtime
from tests.support.stores import in_force


@pytest.fixture
def at(transactional_db: None) -> Iterator[Runtime]:
    with in_force() as at:
        yield at
