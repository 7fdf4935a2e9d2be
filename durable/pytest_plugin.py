"""The pytest fixture of durable, registered by entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from durable.testing import Harness

__all__ = ["durable_harness"]


@pytest.fixture
def durable_harness() -> Iterator[Harness]:
    """A `durable.testing.Harness` that is active for one test."""
    from durable.testing import Harness  # needs configured settings

    with Harness() as harness:
        yield harness
