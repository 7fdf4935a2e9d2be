"""What the tests of the engine share: the two flavours of a workflow, and a harness with a fixed clock."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour
from tests.plugin import leave_out

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE: Final = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count a test that has both flavours and further parameters to those that take long, but for every fifth case of
    the asynchronous flavour: the drivers differ, the histories do not. A test that is marked `few_async` has
    no other cases of that flavour."""
    seen: Counter[str] = Counter()
    needless = set[pytest.Item]()
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            parameters = item.callspec.params
            if parameters.get("flavour") == "async" and len(parameters) > 1:
                name = item.nodeid.partition("[")[0]
                if seen[name] % 5:
                    if item.get_closest_marker("few_async") is not None:
                        needless.add(item)
                    else:
                        item.add_marker(pytest.mark.slow)
                seen[name] += 1
    leave_out(config, items, needless.__contains__)


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
