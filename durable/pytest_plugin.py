"""The pytest fixtures and options of durable, registered by entry point."""

from __future__ import annotations

import argparse
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
    """Declare where a project keeps its files of histories, and the options of the report of deaths."""
    group = parser.getgroup("durable", "deaths of workers (durable)")
    group.addoption(
        "--durable-crashes",
        action="store_true",
        help="execute each test that uses a Harness again, with a death before and after each commit, and report what is "
        "done twice; that fails the session",
    )
    group.addoption(
        "--durable-crashes-warn", action="store_true", help="findings of --durable-crashes do not fail the session"
    )
    group.addoption(
        "--durable-crashes-report", metavar="FILE", help="write the report of --durable-crashes to a .json or .md file"
    )
    group.addoption(
        "--durable-crashes-at-most",
        metavar="NUMBER",
        type=_positive(int),
        default=200,
        help="deaths of each test, spread over its commits; 200 by default",
    )
    group.addoption(
        "--durable-crashes-seconds",
        metavar="SECONDS",
        type=_positive(float),
        default=60.0,
        help="for the deaths of each test; 60 by default",
    )
    parser.addini(
        _FILES,
        "files of exported histories of durable, as patterns from the root directory",
        type="args",
        default=["tests/histories/*.jsonl"],
    )


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a reader of an option that is above 0."""

    def read(text: str) -> float:
        number = kind(text)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, not {text}")
        return number

    read.__name__ = kind.__name__  # argparse names it in its error
    return read


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register what executes tests again, if the session asks for it."""
    config.addinivalue_line(
        "markers", "no_durable_crashes(reason): leave the test out of what --durable-crashes executes again"
    )
    if config.getoption("durable_crashes"):
        from django.conf import settings

        if not settings.configured:
            raise pytest.UsageError(
                "--durable-crashes needs Django's settings: set DJANGO_SETTINGS_MODULE, or give --ds"
            )
        from durable.testing.deaths.protocol import Deaths

        config.pluginmanager.register(Deaths(config), "durable_deaths")
    elif config.getoption("durable_crashes_report"):
        raise pytest.UsageError("--durable-crashes-report writes the report of --durable-crashes: give both")


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
