"""The call of a workflow's `on_end` in the transaction that ends a run.

Owns what such a function may do: statements on this database, for at most `LIMIT` seconds, in the transaction that is
open. Whatever it raises takes the end of the run back. The row of the run is written first, so that a worker that has
lost the run calls nothing, and a run that the function starts may have the key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from django.db import OperationalError, connections, transaction

from durable import guard
from durable.core import registry
from durable.core.errors import EndFunctionError, EndRefusedError
from durable.core.records import RunRecord
from durable.core.registry import EndFunction
from durable.store.sessions import driver_connection
from durable.store.transactions import is_broken, kept_open

if TYPE_CHECKING:
    from durable.store.base import Store

logger = logging.getLogger("durable.store")

LIMIT: Final = 5.0  # seconds
#: Seconds: shorter than PostgreSQL waits before it looks for a deadlock. Code of the project locks its own row and then
#: the run's, for a message or a cancel, and an end the run's and then the project's: the end gives way.
LOCK_LIMIT: Final = 0.5

_SET: Final = """WITH old AS MATERIALIZED (
  SELECT current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS lock)
SELECT statement, lock, set_config('statement_timeout', CASE WHEN statement::interval > '0'
    AND statement::interval < make_interval(secs => %(limit)s) THEN statement ELSE %(limit)s || 's' END, true),
  set_config('lock_timeout', CASE WHEN lock::interval > '0' AND lock::interval < make_interval(secs => %(lock)s)
    THEN lock ELSE %(lock_ms)s END, true)
FROM old"""
_PUT_BACK: Final = "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)"

_ENDED_TRANSACTION: Final = (
    "{name} ended the transaction in which it was called: with COMMIT, ROLLBACK or PREPARE TRANSACTION as SQL, or with a "
    "method of the driver's connection. What it committed stays. Use transaction.atomic() and raise an error to refuse"
)


def function_of(workflow: str) -> EndFunction | None:
    """Return the function to call at the end of this workflow's runs; None for none, or if the workflow is unknown."""
    definition = registry.find(workflow)
    return None if definition is None else definition.on_end


def has_function(store: Store, workflow: str) -> bool:
    """Return whether the workflow has an `on_end`, here or in the code of other processes."""
    definition = registry.find(workflow)
    return store.calls_at_end(workflow) if definition is None else definition.on_end is not None


def hands_over(store: Store, workflow: str) -> bool:
    """Return whether the end of a run has to be left to a worker, because this process lacks the code to call."""
    definition = registry.find(workflow)
    if definition is None:
        return store.calls_at_end(workflow)
    return definition.on_end is not None and not definition.on_end.is_here()


def call(alias: str | None, function: EndFunction, run: RunRecord) -> None:
    """Call the function for a run that has ended, in the open transaction of the database `alias`; None for none.

    Raises EndRefusedError if it fails, or does what it may not do. The errors of a lost connection, and of a function
    that has ended the transaction, are raised as they are: it is then unknown what was written.
    """
    ended = EndFunctionError(_ENDED_TRANSACTION.format(name=function.name))
    try:
        with ExitStack() as around:
            if alias is not None:
                around.enter_context(_within_limits(alias, function.name))
                around.enter_context(kept_open(alias, ended))
            around.enter_context(guard.watching_end(run, function.name))
            function(run)
    except Exception as error:
        if error is ended or (alias is not None and _is_lost(alias)):
            raise
        level = logging.WARNING if isinstance(error, OperationalError) else logging.ERROR
        text = "run %s of %s has not ended: %s, its on_end, failed"
        about = {"run_id": run.id, "workflow": run.workflow}
        logger.log(level, text, run.id, run.workflow, function.name, exc_info=error, extra=about)
        raise EndRefusedError(run.id, run.workflow, function.name, error) from error


def _is_lost(alias: str) -> bool:
    raw = driver_connection(connections[alias])
    return raw is None or bool(getattr(raw, "closed", False))


@contextmanager
def _within_limits(alias: str, name: str) -> Iterator[None]:
    """Refuse statements on other databases, and more than `LIMIT` seconds; raise if the transaction cannot commit."""
    connection = connections[alias]
    until = monotonic() + LIMIT

    def check_time() -> None:
        if monotonic() > until:
            raise EndFunctionError(
                f"{name} took longer than {LIMIT:g} seconds, in which it holds locks: start a run in it to do more"
            )

    def timed(execute: Callable[..., Any], *call: Any) -> Any:
        check_time()
        return execute(*call)

    before = _set_timeouts(alias)
    with ExitStack() as watched:
        watched.enter_context(connection.execute_wrapper(timed))
        for other in connections:
            if other != alias:
                watched.enter_context(connections[other].execute_wrapper(_refused_on(other, alias, name)))
        yield
    check_time()
    if transaction.get_rollback(alias) or is_broken(connection):
        raise EndFunctionError(
            f"{name} caught an error of the database, after which its transaction cannot be committed: let the error out, "
            "or put what may fail into a transaction.atomic() of its own"
        )
    if before is not None and connection.savepoint_ids:  # otherwise the end of the transaction puts them back
        with connection.cursor() as cursor:
            cursor.execute(_PUT_BACK, before)


def _set_timeouts(alias: str) -> tuple[str, str] | None:
    """Limit the statements of the open transaction; return the limits from before. None if the database has none."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        limits: dict[str, float | str] = {"limit": LIMIT, "lock": LOCK_LIMIT, "lock_ms": f"{LOCK_LIMIT * 1000:.0f}ms"}
        cursor.execute(_SET, limits)
        statement, lock, *_ = cursor.fetchone()
    return statement, lock


def _refused_on(other: str, alias: str, name: str) -> Callable[..., Any]:
    def refuse(*_call: Any) -> Any:
        raise EndFunctionError(
            f'{name} used the database "{other}", which is not in the transaction of the end: write rows of "{alias}" '
            f'there, with .using("{alias}") if a router chooses another one, and start a run for the others'
        )

    return refuse
