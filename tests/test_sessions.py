"""A session of tests: what it leaves out, what its processes share, and that nothing outlives it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import psutil
import pytest

PATIENCE = 300.0  # seconds
ROOT = Path(__file__).resolve().parent.parent


pytest_plugins = ["pytester"]

MODULE = """
import pytest

def test_quick(): pass

@pytest.mark.slow
def test_that_takes_long(): pass

@pytest.mark.browser
def test_in_a_browser(): pass
"""


@pytest.fixture
def session_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a session that the plugin of these tests can be loaded into."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "project.settings")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in list(os.environ):
        if name.startswith("PYTEST_XDIST_"):
            monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.usefixtures("session_apart")
@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        *(((), 1), (("-p", "no:cacheprovider"), 1)),
        *((("--all",), 3), (("test_tiers.py",), 3), (("-k", "long or quick"), 2), (("-m", "browser"), 1)),
    ],
)
def test_what_takes_long_is_left_out_where_nothing_is_selected_and_that_is_said(
    pytester: pytest.Pytester, arguments: tuple[str, ...], passed: int
) -> None:
    pytester.makepyfile(test_tiers=MODULE)
    pytester.makeini("[pytest]\nmarkers =\n slow: s\n e2e: e\n browser: b")
    done = pytester.runpytest_subprocess("-p", "tests.plugin", *arguments)
    assert done.parseoutcomes()["passed"] == passed
    said = "*2 tests were left out (1 browser, 1 slow)*pytest --all*"
    if arguments and arguments[0] != "-p":
        done.stdout.no_fnmatch_line(said)
    else:
        done.stdout.fnmatch_lines([said])


@pytest.mark.slow
@pytest.mark.usefixtures("session_apart")
def test_one_case_of_each_test_is_run_but_all_of_a_path(pytester: pytest.Pytester) -> None:
    module = """
import pytest

@pytest.mark.parametrize("store", ["memory", pytest.param("postgres", marks=pytest.mark.postgres), "sqlite"])
def test_stores(store): pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_numbers(number): pass
"""
    pytester.makepyfile(test_one=module, test_each=module)
    pytester.makeini("[pytest]\nmarkers =\n slow: s\n postgres: p")
    paths = ("test_one.py", "test_each.py")
    done = pytester.runpytest_subprocess(
        "-v", "-p", "tests.plugin", "--cases", str(pytester.path / "test_each.py"), *paths
    )
    assert done.parseoutcomes() == {"passed": 2 + 8, "deselected": 6}
    done.stdout.fnmatch_lines(["*test_one.py::test_stores?postgres? PASSED*"])
    done = pytester.runpytest_subprocess("-p", "tests.plugin", "--cases", "none", "--slow", "none", *paths)
    assert done.parseoutcomes() == {"passed": 2, "deselected": 14}


def test_children_find_compiled_what_they_import() -> None:
    modules = ("pytest", "django.db.models.query", "durable.worker.process", "project.settings")
    paths = [Path(cache_from_source(str(find_spec(name).origin))) for name in modules]  # type: ignore[union-attr]
    assert [path for path in paths if not path.is_file()] == []


@pytest.mark.slow
def test_a_divided_session_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"DATABASE_URL": "", "REDIS_URL": ""}  # servers of its own
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "tests"),
    ]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, "tests/store/test_claims.py", "tests/store/test_commit.py"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        ) as session,
    ):
        begun: dict[int, psutil.Process] = {}

        def both_have_servers() -> bool:
            assert session.poll() is None, (tmp_path / "log").read_text()
            begun.update({each.pid: each for each in psutil.Process(session.pid).children(recursive=True)})
            names = [name_of(each) for each in begun.values()]
            return names.count("redis-server") >= 2 and names.count("postgres") >= 2

        wait_until(both_have_servers)
        session.kill()
    wait_until(lambda: not [each for each in begun.values() if name_of(each)])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def name_of(process: psutil.Process) -> str:
    """The name of its program; nothing if it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""
