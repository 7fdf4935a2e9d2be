"""Keep durable's log messages caused by a test off the terminal.

The expected failures of a test are warnings and errors of the engine. Handlers of Python's, Django's and rich that
print them, write them to a file or send them are muted. Handlers that collect records for assertions still get them:
pytest's `caplog`, unittest's `assertLogs`, a stream in memory, a class of the test's own.

Refuse queries of the tables of runs while the runs are in memory, where such a query would find nothing.

Owns which statements are refused: those that read or update runs and what belongs to them, while there are runs in
memory and none in the database. A test that has runs in both means what it asks. Deletes and the emptying of tables
pass, as a test's teardown needs them, and so do the tables around runs: schedules, and the audit log, which the
deletion of a user reads.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from durable import runtime
from durable.guard import is_guards
from durable.models import Run

_ROOT: Final = "durable"
_OF_WORKFLOWS: Final = "durable.workflow"  # log records of the test's own code
_COLLECTING: Final = frozenset({"_pytest", "unittest"})
_PRINTING: Final = frozenset({"logging", "django", "rich"})


@contextmanager
def muted(*, wholly: bool = False) -> Iterator[None]:
    """Within the block no handler prints what durable's loggers say.

    With `wholly`, no handler collects them either, and messages of `ctx.logger` are muted too.
    """
    mute = _Mute(wholly)
    handlers = [each for each in _handlers() if wholly or _prints(each)]
    for each in handlers:
        each.addFilter(mute)
    try:
        yield
    finally:
        for each in handlers:
            each.removeFilter(mute)


class _Mute(logging.Filter):
    def __init__(self, wholly: bool) -> None:
        super().__init__()
        self._is_spared = frozenset() if wholly else frozenset({_OF_WORKFLOWS})

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.name
        return name in self._is_spared or not _is_of_durable(name)


def _is_of_durable(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


def _handlers() -> list[logging.Handler]:
    """Return every handler that may get a record from durable."""
    loggers: list[logging.Logger] = [logging.root]
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(_ROOT) and isinstance(logger, logging.Logger) and _is_of_durable(name):
            loggers.append(logger)
    found = [handler for logger in loggers for handler in logger.handlers]
    return found if logging.lastResort is None else [*found, logging.lastResort]


def _prints(handler: logging.Handler) -> bool:
    owner = type(handler).__module__.partition(".")[0]
    if isinstance(handler, logging.StreamHandler):
        return owner not in _COLLECTING and not isinstance(handler.stream, io.StringIO)
    return owner in _PRINTING


_TABLES: Final = re.compile(r'(?:(?<!DELETE )\bFROM|\bJOIN|\bUPDATE)\s+(?:ONLY\s+)?"?(durable_\w+)', re.IGNORECASE)


class RunsInMemoryError(RuntimeError):
    """A query read durable's tables although the harness keeps its runs in memory."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"{model} is a table, and this harness keeps its runs in memory: the query would find none of them. Write "
            'Harness(store="database") to keep them in the test\'s database, or read them by get_run(id) and h.peek(id)'
        )


@contextmanager
def queries_refused(at: runtime.Runtime, has_runs: Callable[[], object]) -> Iterator[None]:
    """Refuse such queries on every connection, within the block and while `at` is the runtime in force.

    `has_runs` returns whether there are runs in memory.
    """

    def judge(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if runtime.current() is at:
            found = next((_models()[table] for table in _TABLES.findall(str(sql)) if table in _models()), None)
            if found is not None and has_runs() and not _has_rows(context["connection"]):
                raise RunsInMemoryError(found)
        return execute(sql, params, many, context)

    with statements_through(judge):
        yield


@contextmanager
def statements_through(wrapper: Callable[..., Any]) -> Iterator[None]:
    """Within the block, execute each statement of each connection through `wrapper`, as Django's execute wrappers."""
    watched: list[BaseDatabaseWrapper] = []

    def watch(*, connection: BaseDatabaseWrapper, **_: object) -> None:
        wrappers = connection.execute_wrappers
        if wrapper not in wrappers:
            # Behind the guard's, which must not find durable's code above it, and not last: Django takes off the last.
            wrappers.insert(1 if wrappers and is_guards(wrappers[0]) else 0, wrapper)
            watched.append(connection)

    connection_created.connect(watch, weak=False)
    for each in connections.all(initialized_only=True):
        watch(connection=each)
    try:
        yield
    finally:
        connection_created.disconnect(watch)
        for each in watched:
            each.execute_wrappers.remove(wrapper)


def _has_rows(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the database has a run. Bypasses Django, whose queries a test may count."""
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute("SELECT 1 FROM durable_run LIMIT 1")
            return cursor.fetchone() is not None
    except Exception:  # noqa: BLE001  # of the driver, whatever it is
        return True  # let the statement itself say what is wrong


@cache
def _models() -> dict[str, str]:
    """Return, by table, the names of the models whose rows are a run or belong to one."""
    return {
        each._meta.db_table: each.__name__ for each in apps.get_app_config("durable").get_models() if _is_of_run(each)
    }


def _is_of_run(model: Any) -> bool:
    parents = (field.related_model for field in model._meta.concrete_fields if field.is_relation)
    return model is Run or any(_is_of_run(each) for each in parents if each not in (model, get_user_model()))
