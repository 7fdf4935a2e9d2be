"""What the tests of the engine share: the two flavours of a workflow, and a harness with a fixed clock."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return Flavour(request.param)


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(now=NOW) as harness:
        yield harness


@pytest.fixture
def lenient() -> Iterator[Harness]:
    """A harness for code that differs from pass to pass on purpose."""
    with Harness(now=NOW, strict=False) as harness:
        yield harness


@pytest.fixture(autouse=True)
def nothing_undone() -> Iterator[None]:
    """The handlers of `undoing` have noted nothing, and none is to fail."""
    for noted in (undoing.undone, undoing.contexts, undoing.fails_left):
        noted.clear()
    yield
    undoing.fails_left.clear()
