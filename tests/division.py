"""How a session is divided between two processes. Loaded with `-p tests.division`.

Owns the choice of the number of processes and the order in which modules are handed to them:

* `pytest` without a path, `-k` or `-m` runs everything, and divides it between two processes of pytest-xdist. Any other
  session runs in this process. `-n` decides for itself: `-n 0` is one process, `pytest tests/store -n 2` is two.
* A module is never divided (`--dist loadfile`). The modules that take longest are handed out first, so that both
  processes end at about the same time.

Each process has servers, databases and directories of its own: see `tests.plugin`. pytest-xdist ends a process, and with
it its servers, when the one that started it ends, by SIGKILL too.
"""

import os
from collections.abc import Iterable
from typing import Final

import pytest

PROCESSES: Final = 2  # as many as CI has cores


def number_of_this_process() -> int | None:
    """Which of the processes of a divided session this is, counted from 0; None if it is none of them."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) if name else None


def tests_run_elsewhere(config: pytest.Config) -> bool:
    """Whether this process only hands tests out, so that it needs no servers. `config` may be an early one."""
    options = config.known_args_namespace
    if options.collectonly or number_of_this_process() is not None:
        return False
    if options.numprocesses is not None:
        return bool(options.numprocesses)
    debugs = options.usepdb or options.trace or options.capture == "no"
    selects = options.file_or_dir or options.keyword or options.markexpr or options.lf or options.stepwise
    return not (debugs or selects)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if tests_run_elsewhere(early_config) and early_config.known_args_namespace.numprocesses is None:
        early_config.option.numprocesses = PROCESSES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if number_of_this_process() is not None:
        items[:] = longest_first(items)


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Module by module, in the order of collection: first the second engine's round, then modules with slow tests."""
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return [item for name in sorted(modules, key=lambda each: _rank(each, modules[each])) for item in modules[name]]


def _rank(name: str, items: list[pytest.Item]) -> int:
    if name == "tests/test_on_sqlite.py":
        return 0
    return 1 if any(item.get_closest_marker(each) for item in items for each in ("slow", "e2e")) else 2
