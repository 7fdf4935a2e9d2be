"""Database sessions in a worker: undo changes that the code of steps makes to its session.

Owns detecting, at no cost to the server, that other code than the engine's has used a session, and restoring it to the
state of a new Django session. On PostgreSQL every statement of psycopg calls its connection's `wait`, except the
engine's own commits. On SQLite a callback receives each statement, and only a PRAGMA, an ATTACH or a temporary table
counts. Sessions are restored only within `guarded()`, where a worker executes a pass; never in a web process, for
example.

Agents that trace statements (Datadog, New Relic, Elastic) give Django a proxy of the driver's connection. Code that
needs more of a connection than the DB-API calls `driver_connection` first.

Also makes sessions of durable's database read times outside of Python's range, such as `infinity`, which somebody may
have written by SQL. psycopg would raise an error, so that one row would break every list.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from django.db import InternalError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from durable import guard
from durable.conf import conf
from durable.core.clock import EARLIEST, LATEST

#: The statements that restore a PostgreSQL session: the user, all settings, advisory locks, cursors, channels, and
#: temporary tables, which would take the writes of later runs. They do what DISCARD ALL does, which is not allowed in a
#: transaction and drops prepared statements.
_RESTORE: Final = (
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ROLE",
    "RESET ALL",
    "SELECT pg_advisory_unlock_all()",
    "CLOSE ALL",
    "UNLISTEN *",
    "DISCARD TEMP",
)
_CHANGES_SQLITE: Final = re.compile(
    r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*(?:PRAGMA|ATTACH|CREATE\s+TEMP)", re.IGNORECASE | re.DOTALL
)
_SHOWN: Final = 2_000  # characters of an SQLite statement that are examined
#: The attribute of psycopg's connection with the call that another thread has sent and that is not answered yet.
SENDING: Final = "_durable_sending"
#: Attributes of psycopg's connection: those that can be reset at any moment, and all that are compared.
_PLAIN_STATE: Final = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold")
_PYTHON_STATE: Final = (*_PLAIN_STATE, "read_only", "isolation_level", "deferrable")
_ADAPTERS: Final = ("_own_loaders", "_own_dumpers")  # the adapters' maps that show whether something was registered


_is_guarded: ContextVar[bool] = ContextVar("durable_sessions_are_guarded", default=False)


class _Watch:
    """The state of one session: whether other code has used it, and whether the next statement has to restore it."""

    __slots__ = ("is_due", "is_used", "python_state")

    def __init__(self, raw: Any) -> None:
        self.is_used = False
        self.is_due = False
        self.python_state = _python_state(raw)


def _python_state(raw: Any) -> tuple[Any, ...]:
    adapters = getattr(raw, "adapters", None)
    registered = [tuple(getattr(adapters, each, None) or ()) for each in _ADAPTERS]
    return (*(getattr(raw, each, None) for each in _PYTHON_STATE), *registered)


def driver_connection(connection: BaseDatabaseWrapper) -> Any:
    """Return the driver's own connection, without the proxies of tracing agents; None if it is closed or cannot be
    found.
    """
    raw = connection.connection
    while (inner := getattr(raw, "__wrapped__", None)) is not None:
        raw = inner
    if connection.vendor == "postgresql" and raw is not None and not hasattr(type(raw), "wait"):
        with suppress(Exception):  # the connection is closed
            return raw.cursor().connection  # a proxy that does not say what it stands for; its cursors do
    return raw


_TIMESTAMPTZ: Final = 1184  # PostgreSQL's number of the type


def look_at_new_sessions() -> None:
    """Let each new session of durable's database read times outside of Python's range as EARLIEST or LATEST, and be
    watched if it is made within `guarded`.
    """
    connection_created.connect(_bound_times, dispatch_uid="durable.store.sessions.times")
    connection_created.connect(_watch_if_guarded, dispatch_uid="durable.store.sessions")


def _bound_times(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor != "postgresql" or connection.alias != conf.DATABASE:
        return
    adapters: Any = driver_connection(connection).adapters
    loader = adapters.get_loader(_TIMESTAMPTZ, 0)  # of texts, as Django reads rows
    if loader is not None and not hasattr(loader, "is_bounded"):  # a pool gives the same session again
        adapters.register_loader("timestamptz", _bounded(loader))
        type(adapters)(adapters)  # a copy, as cursors make: from now on nothing counts as registered in this session


@cache
def _bounded(loader: Any) -> type[Any]:
    """Return the loader (Django's or the project's own), wrapped so that it also answers for times outside of Python's
    range.
    """
    from psycopg import DataError

    class Bounded(loader):  # type: ignore[misc]  # known at run time
        is_bounded = True

        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except (DataError, ValueError, OverflowError):
                text = bytes(data)
                found = EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
                return found.replace(tzinfo=getattr(self, "timezone", found.tzinfo))

    return Bounded


class ReadOnlyDatabaseError(OperationalError):
    """The database refuses writes in this session: its server is a standby, or has become one."""


_READ_ONLY: Final = "25006"  # SQLSTATE of a write in a transaction that is read only


def refused(connection: BaseDatabaseWrapper, error: InternalError) -> Exception:
    """Return the error to raise for one of the store's statements that PostgreSQL has refused with `error`.

    During a switchover, sessions may lead to a server that has become a standby. Such a session is closed, and the
    error is of a class that retrying code handles. A transaction that is read-only on purpose keeps its session.
    """
    if getattr(error.__cause__, "sqlstate", None) != _READ_ONLY:
        return error
    if not connection.in_atomic_block or _is_read_only(connection):
        connection.close()
    else:
        connection.close_at = time.monotonic()  # at the end of the request, if no pooler has said what the server is
    return ReadOnlyDatabaseError(
        f'{error}: the database "{connection.alias}" is read only here, as a standby is during a switchover. Nothing was '
        "written, and the connection is not used again. Try again in a few seconds: a start with an id of yours, or a "
        "message with an id, happens once however often it is tried"
    )


def _is_read_only(connection: BaseDatabaseWrapper) -> bool:
    """Return True if the server has reported that all transactions of this session are read-only."""
    status = driver_connection(connection).pgconn.parameter_status
    return b"on" in (status(b"in_hot_standby"), status(b"default_transaction_read_only"))


# -- detecting


@contextmanager
def guarded() -> Iterator[None]:
    """Restore the sessions that the code of a pass uses in the block, in this thread and in those of its branches."""
    for connection in connections.all(initialized_only=True):
        _watch(connection)
    token = _is_guarded.set(True)
    try:
        yield
    finally:
        _is_guarded.reset(token)


def _watch_if_guarded(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    if _is_guarded.get():
        _watch(connection)


def _watch(connection: BaseDatabaseWrapper) -> None:
    raw = driver_connection(connection)
    if raw is None or _watch_of(connection) is not None:
        return
    if connection.vendor == "postgresql" and hasattr(type(raw), "wait"):
        raw._durable_session = watch = _Watch(raw)
        raw.wait = _noting_wait(watch, raw)
    elif connection.vendor == "sqlite":
        watch = _Watch(raw)
        vars(connection)["_durable_session"] = (raw, watch)  # sqlite3's connections take no attributes
        raw.set_trace_callback(_noting_statements(watch))


def _watch_of(connection: BaseDatabaseWrapper) -> _Watch | None:
    raw = driver_connection(connection)
    if raw is None:
        return None
    found: _Watch | None
    if connection.vendor == "sqlite":
        of, found = vars(connection).get("_durable_session", (None, None))
        return found if of is raw else None
    found = getattr(raw, "_durable_session", None)
    return found


def _noting_wait(watch: _Watch, raw: Any) -> Any:
    method, reference = type(raw).wait, weakref.ref(raw)  # not a bound method: no reference cycle

    def wait(*args: Any, **kwargs: Any) -> Any:
        watch.is_used = True
        return method(reference(), *args, **kwargs)

    return wait


def _noting_statements(watch: _Watch) -> Any:
    def note(statement: str) -> None:
        if _CHANGES_SQLITE.match(statement[:_SHOWN]):
            watch.is_used = True

    return note


@contextmanager
def not_noted(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Do not count statements in the block as use: they are the engine's own and leave the session as it is."""
    watch = _watch_of(connection)
    was_used = watch is not None and watch.is_used
    try:
        yield
    finally:
        if watch is not None:
            watch.is_used = was_used


# -- restoring


def _set_back(raw: Any, watch: _Watch) -> None:
    """Reset the plain attributes of psycopg's connection."""
    for name, value in zip(_PLAIN_STATE, watch.python_state, strict=False):
        if getattr(raw, name, None) != value:
            setattr(raw, name, value)


def prepare_commit(alias: str) -> None:
    """Keep session changes made by a step from affecting the next commit of the pass.

    If possible, the next call of a durable function in the database restores the session in the same round trip.
    """
    if not _is_guarded.get():
        return
    connection = connections[alias]
    watch = _watch_of(connection)
    if watch is None or not watch.is_used:
        return
    if connection.vendor == "postgresql":
        _set_back(driver_connection(connection), watch)
    if connection.needs_rollback:  # the statement will be refused, and rolling back the transaction undoes its settings
        return
    if _needs_round_trip(connection):
        restore(connection)
    else:
        watch.is_due = True


def is_as_new(connection: BaseDatabaseWrapper) -> bool:
    """Return True if nothing has to be restored before the next statement."""
    watch = _watch_of(connection)
    return watch is None or not (watch.is_used or watch.is_due)


def restored_by(connection: BaseDatabaseWrapper) -> bool:
    """Return True if the next statement has to restore the session first. It then must: this returns True only once."""
    watch = getattr(driver_connection(connection), "_durable_session", None)
    if watch is None or not watch.is_due:
        return False
    watch.is_due = False
    # in a transaction, which may be rolled back, the next commit restores again
    watch.is_used = connection.in_atomic_block
    return True


def preface(connection: BaseDatabaseWrapper) -> str:
    """Return the statements that restore the session to the state of a new Django session."""
    statements = [*_RESTORE, *_of_django(connection)]
    return "; ".join(statements)


def _of_django(connection: Any) -> Sequence[str]:
    statements = []
    if connection.timezone_name:
        statements.append(f"SET TIME ZONE {_literal(connection.timezone_name)}")
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        statements.append(f"SET ROLE {connection.ops.quote_name(role)}")
    return statements


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def restore(connection: BaseDatabaseWrapper) -> None:
    """Restore the session with statements of its own; close it if that is not reliable."""
    watch = _watch_of(connection)
    if watch is None:
        return
    if connection.vendor == "postgresql":
        _set_back(driver_connection(connection), watch)
    if not _can_be_restored(connection, watch):
        if not connection.in_atomic_block:
            connection.close()
        return
    raw = driver_connection(connection)
    with connection.wrap_database_errors:
        raw.execute(preface(connection), prepare=False)
    if _receivers(connection):
        connection_created.send(sender=connection.__class__, connection=connection)
    watch.is_due = False
    watch.is_used = connection.in_atomic_block


def restore_used(alias: str) -> None:
    """Restore this thread's session if other code has used it, before a query of the engine that is not a commit."""
    if not _is_guarded.get():
        return
    connection = connections[alias]
    watch = _watch_of(connection)
    if watch is not None and watch.is_used and not connection.needs_rollback:
        restore(connection)


def restore_all() -> None:
    """Restore each session of this thread that was used. Called after a pass, before the next run."""
    if not _is_guarded.get():
        return
    for connection in connections.all(initialized_only=True):
        watch = _watch_of(connection)
        if watch is not None and watch.is_used and not connection.in_atomic_block:
            restore(connection)


def _can_be_restored(connection: BaseDatabaseWrapper, watch: _Watch) -> bool:
    raw = driver_connection(connection)
    if connection.vendor != "postgresql" or _python_state(raw) != watch.python_state:
        return False
    if raw.autocommit != connection.autocommit:  # set without Django's knowledge, so nothing would be committed
        return False
    return not _keeps_state(type(connection))


def _keeps_state(kind: type[BaseDatabaseWrapper]) -> bool:
    """Return True for a third-party database backend: it may prepare sessions itself and remember that."""
    for name in ("cursor", "_cursor", "init_connection_state"):
        if not getattr(kind, name).__module__.startswith("django."):
            return True
    return False


def _needs_round_trip(connection: BaseDatabaseWrapper) -> bool:
    if connection.vendor != "postgresql":
        return True
    watch = _watch_of(connection)
    if watch is None or not _can_be_restored(connection, watch) or is_observed(connection):
        return True
    encoding = driver_connection(connection).pgconn.parameter_status(b"client_encoding")
    return encoding != b"UTF8" or bool(_receivers(connection))


def is_observed(connection: BaseDatabaseWrapper) -> bool:
    """Return True if code observes each statement: a test, a debugger, or a replaced method of the object."""
    return bool(guard.observes(connection) or connection.queries_logged or _has_other_cursors(connection))


def _has_other_cursors(connection: BaseDatabaseWrapper) -> bool:
    """Return True if `cursor` was replaced on the object.

    Django's test cases replace it by the class's own when they end.
    """
    replaced = vars(connection).get("cursor")
    return replaced is not None and getattr(replaced, "__func__", None) is not type(connection).cursor


def _receivers(connection: BaseDatabaseWrapper) -> list[Any]:
    """Return the receivers that prepare new sessions, except those of Django and durable."""
    found: Any = connection_created._live_receivers(connection.__class__)
    flat = [*found[0], *found[1]] if isinstance(found, tuple) else found
    return [each for each in flat if not getattr(each, "__module__", "").startswith(("django.", "durable."))]
