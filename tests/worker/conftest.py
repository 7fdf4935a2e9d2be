"""The store whose runs the workers of these tests pass."""

from __future__ import annotations

import pytest

from durable.store import Store, store_for


@pytest.fixture
def store() -> Store:
    return store_for("default")
