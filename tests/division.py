"""How a session is divided between processes. Loaded with `-p tests.division`.

Owns the choice of the number of processes and the order in which modules are handed to them:

* `pytest` without a path, `-k` or `-m` runs everything, and divides it between three processes of pytest-xdist. Any
  other session runs in this process. `-n` decides for itself: `-n 0` is one process, `pytest tests/store -n 2` is two.
* A module is never divided (`--dist loadfile`). The modules that take longest are handed out first, so that all
  processes end at about the same time.

Each process has servers, databases and directories of its own: see `tests.plugin`. pytest-xdist ends a process, and
with it its servers, when the one that started it ends, by SIGKILL too.
"""

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

PROCESSES: Final = 3  # one more than CI has cores: a test that waits for a worker or a timer leaves its core free

# Handed out first, in this order. What is not named takes less than half a minute.
LONGEST: Final = (
    "tests/sqlite/test_others.py",
    "tests/sqlite/test_with_processes.py",
    "tests/store/test_map_rollback.py",
    "tests/renames/test_moving_workers.py",
    "tests/conformance/test_crash.py",
    "tests/benchmarks/test_command.py",
    "tests/chaos/test_chaos.py",
    "tests/development/test_durable_dev.py",
    "tests/renames/test_renaming_queues.py",
    "tests/renames/test_renaming_workflows.py",
    "tests/worker/test_supervisor.py",
    "tests/api/test_schemathesis.py",
    "tests/store/test_rate_interleavings.py",
    "tests/store/test_routines.py",
    "tests/store/test_group_interleavings.py",
    "tests/store/test_groups.py",
    "tests/renames/test_squashed.py",
    "tests/replay_check/test_findings.py",
    "tests/faults/test_shop.py",
    "tests/admin/test_browser.py",
    "tests/docs/test_deploying_files.py",
    "tests/admin/test_browser_addresses.py",
    "tests/admin/test_browser_places.py",
    "tests/shop/test_demo.py",
    "tests/foreign/test_intern.py",
    "tests/admin/test_languages.py",
    "tests/operations/test_replay_preview.py",
    "tests/store/test_map_recovery.py",
    "tests/admin/test_browser_overview.py",
    "tests/admin/test_browser_families.py",
    "tests/admin/test_browser_schedules.py",
    "tests/store/test_slot_interleavings.py",
    "tests/shop/test_browser.py",
    "tests/faults/test_overruns.py",
    "tests/operations/test_discovery.py",
    "tests/e2e/test_survival.py",
    "tests/e2e/test_killers.py",
    "tests/faults/test_forks.py",
    "tests/worker/test_concurrency.py",
    "tests/docs/test_tutorial.py",
    "tests/development/test_polling.py",
    "tests/development/test_health.py",
    "tests/typing/test_checkers.py",
)


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
        order = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(module_of(item), len(order)))


def module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


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
