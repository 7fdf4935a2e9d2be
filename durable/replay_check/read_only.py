"""Read-only transactions: within them the database itself refuses every write.

On PostgreSQL a transaction is made read-only before its first statement, and cannot be made writable again. On SQLite
it is the connection (`PRAGMA query_only`). Statements of workflow code on other connections get the same, one by one;
on other databases, which have no such transaction here, they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.utils import DatabaseError, NotSupportedError

_POSTGRESQL: Final = "postgresql"
_SQLITE: Final = "sqlite"
_READ_ONLY_SQLSTATE: Final = "25006"
_SQLITE_REFUSAL: Final = "readonly database"


@contextmanager
def read_only(alias: str) -> Iterator[None]:
    """Within the block, statements on any Django connection cannot write. `alias` is durable's database.

    Raises NotSupportedError if that database has no read-only transactions.
    """
    if connections[alias].vendor not in (_POSTGRESQL, _SQLITE):
        raise NotSupportedError(
            f'the database "{alias}" is {connections[alias].display_name}, which durable cannot make read-only: check the '
            "histories of a file, or on PostgreSQL or SQLite"
        )
    with ExitStack() as stack:

        def prepare(connection: BaseDatabaseWrapper, **_: object) -> None:
            if _execute not in connection.execute_wrappers:
                connection.execute_wrappers.append(_execute)
                stack.callback(connection.execute_wrappers.remove, _execute)
            if connection.vendor == _SQLITE and connection.connection is not None:
                stack.enter_context(_query_only(connection))

        connection_created.connect(prepare, weak=False, dispatch_uid=prepare)
        stack.callback(connection_created.disconnect, dispatch_uid=prepare)
        for each in connections.all(initialized_only=True):
            prepare(each)
        yield


@contextmanager
def snapshot(alias: str) -> Iterator[None]:
    """Within the block, this thread reads one snapshot of the database and cannot write.

    Everything in the block is rolled back at its end, so that an error that code has caught leaves nothing behind.
    """
    connection = connections[alias]
    is_outermost = not connection.in_atomic_block
    with ExitStack() as stack:
        stack.enter_context(_unwatched(connection))
        if connection.vendor == _SQLITE:
            connection.ensure_connection()
            stack.enter_context(_query_only(connection))
        stack.enter_context(transaction.atomic(using=alias))
        if connection.vendor == _POSTGRESQL:
            isolation = "ISOLATION LEVEL REPEATABLE READ, " if is_outermost else ""
            _run(connection, f"SET TRANSACTION {isolation}READ ONLY")
        try:
            yield
        finally:
            transaction.set_rollback(True, using=alias)


@contextmanager
def _unwatched(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Within the block, statements are not made read-only one by one, because the whole transaction is."""
    wrappers = connection.execute_wrappers
    is_watched = _execute in wrappers
    if is_watched:
        wrappers.remove(_execute)
    try:
        yield
    finally:
        if is_watched:
            wrappers.append(_execute)


@contextmanager
def _query_only(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Within the block, let an SQLite connection write nothing, and take no write lock in transactions."""
    settings: Any = connection
    session, mode = connection.connection, settings.transaction_mode
    with closing(session.cursor()) as cursor:
        (before,) = cursor.execute("PRAGMA query_only").fetchone()
        cursor.execute("PRAGMA query_only = 1")
    settings.transaction_mode = None
    try:
        yield
    finally:
        settings.transaction_mode = mode
        if connection.connection is session:  # otherwise it was closed meanwhile
            _run(connection, f"PRAGMA query_only = {int(before)}")


def is_refused_write(error: BaseException | None) -> bool:
    """Return True if a database has refused a statement because the transaction is read-only."""
    while error is not None:
        if getattr(error, "sqlstate", getattr(error, "pgcode", None)) == _READ_ONLY_SQLSTATE:
            return True
        if isinstance(error, DatabaseError) and _SQLITE_REFUSAL in str(error):
            return True
        error = error.__cause__
    return False


def _execute(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    connection: BaseDatabaseWrapper = context["connection"]
    if connection.vendor == _SQLITE:
        return execute(sql, params, many, context)
    if connection.vendor != _POSTGRESQL:
        raise NotSupportedError(
            f'a statement on the database "{connection.alias}" ({connection.display_name}), which cannot be made read-only '
            "for a replay: put it into a step"
        )
    with _unwatched(connection), transaction.atomic(using=connection.alias):
        _run(connection, "SET TRANSACTION READ ONLY")
        return execute(sql, params, many, context)


def _run(connection: BaseDatabaseWrapper, sql: str) -> None:
    """Execute the statement without Django's wrappers."""
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(sql)
