"""The servers of a test session. Loaded with `-p tests.plugin`, which is before Django reads its settings.

Owns which database and which Redis a session uses:

* `DATABASE_URL` set: that database (Django puts its test database beside it). Otherwise an embedded PostgreSQL, which
  starts with the first test that uses the database: tests of the core alone cost no server.
* `REDIS_URL` set: that server. Otherwise an embedded one. In both cases logical database 15, which is flushed.
* A session that is divided between processes (see `tests.division`): each has all that for itself. On servers that were
  given, each has a test database of its own name, and the logical databases 15, 14 and so on.

`--database-tests-only` keeps just the tests that use the database; `tests.sqlite` runs those again on SQLite. A test
that is tried with several stores is kept with those of the database: the store in memory is the same beside each.
"""

import os
import signal
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import pytest

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.division import number_of_this_process, tests_run_elsewhere
from tests.support.forkserver import client as forkserver

REDIS_DATABASE: Final = 15
DATABASE_FIXTURES: Final = frozenset({"db", "transactional_db", "django_db_serialized_rollback", "live_server"})

POSTGRES = pytest.StashKey[EmbeddedPostgres]()
REDIS = pytest.StashKey[EmbeddedRedis]()
SQLITE_SUMMARY: Final = (
    "sqlite_summary"  # a property that the test records, so that it reaches the process that reports
)

_started: list[EmbeddedPostgres | EmbeddedRedis] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database-tests-only", action="store_true", help="run only the tests that use the default database"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Decide the environment. Runs before pytest-django's hook of the same name, which loads the settings."""
    os.environ.setdefault("DEBUG", "1")  # cookies go over plain http to the tests' own servers
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if tests_run_elsewhere(early_config):
        return
    forkserver.install()
    if not os.environ.get("DATABASE_URL"):
        postgres = EmbeddedPostgres(fsync=False, settings={"max_prepared_transactions": "2"})
        early_config.stash[POSTGRES] = postgres
        _started.append(postgres)
        os.environ["DATABASE_URL"] = postgres.url
    if not os.environ.get("REDIS_URL"):
        redis = EmbeddedRedis().start()
        early_config.stash[REDIS] = redis
        _started.append(redis)
        os.environ["REDIS_URL"] = redis.url
    logical = REDIS_DATABASE - (number_of_this_process() or 0)
    os.environ["REDIS_URL"] = urlunsplit(urlsplit(os.environ["REDIS_URL"])._replace(path=f"/{logical}"))


def pytest_unconfigure() -> None:
    forkserver.remove()
    while _started:
        _started.pop().close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--database-tests-only"):
        return
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        (kept if uses_database(item) and not is_tried_elsewhere(item) else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def uses_database(item: pytest.Item) -> bool:
    """Whether a test is given access to the default database, by marker, by fixture or by Django's own classes."""
    from django.test import TransactionTestCase

    if item.get_closest_marker("django_db") is not None:
        return True
    if DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, TransactionTestCase)


def is_tried_elsewhere(item: pytest.Item) -> bool:
    """Whether a test with a store as parameter tries the one in memory, which is the same beside each database."""
    return isinstance(item, pytest.Function) and hasattr(item, "callspec") and "memory" in item.callspec.params.values()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In CI, tell of a failure at once: a session that is ended for its length never comes to its summary."""
    if report.failed and os.environ.get("CI") == "true" and number_of_this_process() is None:
        print(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext}\n", flush=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == SQLITE_SUMMARY:
                terminalreporter.write_line(f"The tests that use the database, again on SQLite: {value}")
