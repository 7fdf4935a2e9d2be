"""How a session of tests runs. Loaded with `-p tests.plugin`, which is before Django reads its settings.

Which tests:

* `pytest` runs what a contributor runs before each commit. It leaves out the tests that are marked `slow`, `e2e` or
  `browser`, and says so in its last lines. `pytest --all` leaves out nothing, and neither does any session with a path,
  `-k` or `-m`. `pytest --slow PATH PATHS` leaves them out too, but for those of `PATH` that are marked `slow` and need
  no browser.
* `pytest --cases PATH PATHS` runs one case of each test with parameters, but all cases of those of `PATH`. Another
  version of Django, of Python or of a server breaks a test rather than one of its cases. Of several databases the one
  of the session is taken.
* A session that selects nothing is divided between three processes of pytest-xdist, with `--all` between four, module
  by module: those whose tests are left out otherwise come first, because they take longest. Any other session runs in
  this process. `-n` decides for itself: `-n 0` is one process, `pytest tests/store -n 2` is two.

Which database and which Redis:

* `DATABASE_URL` set: that database (Django puts its test database beside it). Otherwise an embedded PostgreSQL, which
  starts with the first test that uses the database: tests of the core alone cost no server.
* `REDIS_URL` set: that server. Otherwise an embedded one. In both cases logical database 15, which is flushed.
* Each process of a divided session has all that for itself. On servers that were given, each has a test database of
  its own name, and the logical databases 15, 14 and so on. pytest-xdist ends a process, and with it its servers, when
  the one that started it ends, by SIGKILL too.
"""

import compileall
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from zlib import crc32

import _pytest
import pytest

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.support.forkserver import client as forkserver

ROOT: Final = Path(__file__).resolve().parent.parent
PROCESSES: Final = 3  # one more than CI has cores: a test that waits for a worker or a timer leaves its core free
PROCESSES_OF_ALL: Final = 4  # of what takes long, more waits: three leave a third of two cores free
LEFT_OUT: Final = ("browser", "e2e", "slow")  # marks, in the order in which the tests are counted
REDIS_DATABASE: Final = 15

POSTGRES = pytest.StashKey[EmbeddedPostgres]()
REDIS = pytest.StashKey[EmbeddedRedis]()
COUNTS = pytest.StashKey[dict[str, int]]()  # of the tests that are left out, by mark
_started: list[EmbeddedPostgres | EmbeddedRedis] = []


# With PYTHONDONTWRITEBYTECODE, which many images of containers set, each of the hundreds of commands that tests start
# would compile all that it imports. pytest's processes cache what they import all the same, until the tests are
# collected. Children do not: a test may change a module twice within a second, which Python does not see in the cache.
_writes_no_bytecode: Final = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests too that take long: processes, browsers, kills")
    parser.addoption("--slow", metavar="PATH", action="append", help="leave out tests that take long, but not of this")
    parser.addoption("--cases", metavar="PATH", action="append", help="one case of each test, but all cases of this")
    parser.addoption("--partitions", metavar="N", help="have the tables of runs and entries in so many partitions")


def number_of_this_process() -> int | None:
    """Which of the processes of a divided session this is, counted from 0; None if it is none of them."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) if name else None


def selects(options: Any) -> bool:
    """Whether the command names the tests to run."""
    # the last two are unknown with `-p no:cacheprovider`
    return any(getattr(options, name, None) for name in ("file_or_dir", "keyword", "markexpr", "lf", "stepwise"))


def tests_run_elsewhere(config: pytest.Config) -> bool:
    """Whether this process only hands tests out, so that it needs no servers. `config` may be an early one."""
    options = config.known_args_namespace
    if options.collectonly or number_of_this_process() is not None:
        return False
    if options.numprocesses is not None:
        return bool(options.numprocesses)
    return not (selects(options) or options.usepdb or options.trace or options.capture == "no")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Decide the environment. Runs before pytest-django's hook of the same name, which loads the settings."""
    if tests_run_elsewhere(early_config):
        if _writes_no_bytecode:
            ours = [ROOT / each for each in ("durable", "project", "tests/benchmarks", "tests/chaos")]
            # what only children import, and what is imported before this module
            for package in (*ours, *(Path(str(each.__file__)).parent for each in (pytest, _pytest))):
                compileall.compile_dir(package, quiet=2)
        if early_config.known_args_namespace.numprocesses is None:
            early_config.option.numprocesses = PROCESSES_OF_ALL if early_config.known_args_namespace.all else PROCESSES
        return
    if partitions := early_config.known_args_namespace.partitions:
        os.environ["DURABLE_PARTITIONS"] = partitions
    os.environ.setdefault("BASE_URL", "https://testserver")
    os.environ.setdefault("DEBUG", "1")  # cookies go over plain http to the tests' own servers
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if paths := config.getoption("--slow"):
        leave_out(config, items, lambda item: _kind(item) != "" and not _is_slow_of(item, paths))
    elif not (config.getoption("--all") or selects(config.option)):
        left_out = leave_out(config, items, lambda item: _kind(item) != "")
        config.stash[COUNTS] = dict(Counter(map(_kind, left_out)))
        if number_of_this_process() is not None:
            config.workeroutput["left_out"] = config.stash[COUNTS]  # type: ignore[attr-defined]  # pytest-xdist's
        return
    if paths := config.getoption("--cases"):
        taken = _one_of_each(items)
        leave_out(config, items, lambda item: item is not taken[_test(item)] and not _is_below(item, paths))
    if number_of_this_process() is not None:
        slow = {_module(item) for item in items if _kind(item)}
        items.sort(key=lambda item: _module(item) not in slow)


def leave_out(
    config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]
) -> list[pytest.Item]:
    """Deselect these tests, and return them."""
    left_out = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    return left_out


def _one_of_each(items: Sequence[pytest.Item]) -> dict[str, pytest.Item]:
    """Return the case of each test that is run: any, but the same one each time, with PostgreSQL if one is."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(_test(item), []).append(item)
    return {
        test: min(each, key=lambda item: (item.get_closest_marker("postgres") is None, crc32(item.nodeid.encode())))
        for test, each in cases.items()
    }


def _is_slow_of(item: pytest.Item, paths: Sequence[str]) -> bool:
    """Whether the test is below one of the paths and marked slow, and needs no browser."""
    is_slow = item.get_closest_marker("slow") is not None and item.get_closest_marker("browser") is None
    return is_slow and _is_below(item, paths)


def _is_below(item: pytest.Item, paths: Sequence[str]) -> bool:
    return any(item.path.is_relative_to(ROOT / each) for each in paths)


def _kind(item: pytest.Item) -> str:
    """The mark for which a test is left out; nothing if it has none."""
    return next((mark for mark in LEFT_OUT if item.get_closest_marker(mark)), "")


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _test(item: pytest.Item) -> str:
    """Return a test without its parameters: those of one are its cases."""
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _writes_no_bytecode
    gc.freeze()  # what imports and collection have made, millions of objects, lives to the end


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates in a report, which has what a test has logged: no process can send them to another."""
    report = yield
    return _encodable(report)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In CI, tell of a failure at once: a session that is ended for its length never comes to its summary."""
    if report.failed and os.environ.get("CI") == "true" and number_of_this_process() is None:
        print(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext}\n", flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from a process of a divided session what it has left out: each collects the same tests."""
    if found := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[COUNTS] = found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if counts := config.stash.get(COUNTS, None):
        kinds = ", ".join(f"{number} {mark}" for mark, number in sorted(counts.items()))
        terminalreporter.write_line(
            f"{sum(counts.values()):,} tests were left out ({kinds}), among them those on SQLite. `uv run pytest --all` runs "
            "all tests, `.ci/run` does so with other versions too.",
            yellow=True,
        )
