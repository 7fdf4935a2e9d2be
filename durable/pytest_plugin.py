"""The pytest fixtures of durable, registered by entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from durable.histories import StoredHistory
    from durable.replay_check import Facts
    from durable.testing import Harness

__all__ = ["DurableHistory", "durable_harness", "durable_histories"]

_FILES: Final = "durable_histories"
_FIXTURE: Final = "durable_histories"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare where a project keeps its files of histories."""
    parser.addini(
        _FILES,
        "files of exported histories of durable, as patterns from the root directory",
        type="args",
        default=["tests/histories/*.jsonl"],
    )


@pytest.fixture
def durable_harness() -> Iterator[Harness]:
    """A `durable.testing.Harness` that is active for one test."""
    from durable.testing import Harness  # needs configured settings

    with Harness() as harness:
        yield harness


class DurableHistory:
    """A recorded run from a file, for a test that replays it with the current code."""

    def __init__(self, history: StoredHistory, facts: Callable[[], Facts]) -> None:
        self.history = history
        self._facts = facts

    def assert_replays(self) -> None:
        """Replay the run; nothing is executed and nothing written.

        Raises AssertionError if the run would diverge; the text says what the history has, what the code does, and what
        to write.
        """
        from durable.replay_check import check_history

        verdict = check_history(self.history.recorded, self._facts())
        if verdict.finding is not None:
            raise AssertionError(str(verdict.finding))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `durable_histories` once for each recorded run in the project's files."""
    if _FIXTURE not in metafunc.fixturenames:
        return
    from durable.histories import HistoryFileError, read_files

    patterns = metafunc.config.getini(_FILES)
    root = metafunc.config.rootpath
    paths = sorted({path for pattern in patterns for path in root.glob(pattern)})
    if not paths:
        raise pytest.UsageError(f"no file of histories is like {' '.join(patterns)} in {root}: set {_FILES}")
    try:
        found = [pytest.param(each, id=f"{path.stem}-{each.run.id}") for path in paths for each in read_files([path])]
    except HistoryFileError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize(_FIXTURE, found, indirect=True)


@pytest.fixture(scope="session")
def _durable_facts() -> Callable[[], Facts]:
    """The renames and moves of the project's migrations, read when it is first asked for and kept for the session."""
    from durable.replay_check import Facts  # needs configured settings

    return cache(Facts.of_project)


@pytest.fixture
def durable_histories(request: pytest.FixtureRequest, _durable_facts: Callable[[], Facts]) -> DurableHistory:
    """A recorded run of the project's files of histories: the test runs once for each of them."""
    return DurableHistory(request.param, _durable_facts)
