"""Transactions on a Django connection: that of an atomic step, and those that do not wait long for locks.

An atomic step's transaction commits, or raises if it did not. It handles what Django leaves to its caller: a
transaction marked for rollback although its code returned, one that its code has ended without Django, and
`transaction.on_commit` hooks that raise after the commit.

Waits for locks are limited where waiting would do more harm than trying again later. The thread that renews a worker's
leases must not wait for one locked row: all runs of the worker would lose their leases. The limit works on PostgreSQL
only: on SQLite, the database's own settings limit the wait for its one lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.core.errors import CriticalError
from durable.store.sessions import driver_connection

logger = logging.getLogger("durable.store")

BROKEN = (
    "the transaction of the atomic step is to be rolled back: its function caught a database error inside it, or "
    "asked for that. Let the error out, or put what may fail into a transaction.atomic() of its own"
)

ENDED = (
    "the function ended the transaction of the atomic step: with COMMIT, ROLLBACK or PREPARE TRANSACTION as SQL, or with "
    "a method of the driver's connection. What it committed stays although the step has no result, so the step is not "
    "tried again. Use transaction.atomic() and transaction.set_rollback(), or a step that is not atomic"
)

LOST = (
    "the session of the atomic step ended before its record could be written, and what the function wrote is gone: "
    "the server was restarted, or it ended the session because the function kept its transaction open for too long "
    "(idle_in_transaction_session_timeout, transaction_timeout). Put what takes long into a step of its own, before "
    "this one"
)

_IDLE: Final = 0  # libpq's PQTRANS_IDLE
_OPEN: Final = (2, 3)  # libpq's PQTRANS_INTRANS and PQTRANS_INERROR


@contextmanager
def committed_or_raised(using: str | None) -> Iterator[None]:
    """Run the block in `transaction.atomic`. Never raises after the commit.

    Raises TransactionManagementError where Django would roll back silently.
    """
    has_committed = False

    def note() -> None:
        nonlocal has_committed
        has_committed = True

    try:
        with transaction.atomic(using=using):
            transaction.on_commit(note, using=using)  # the first of the hooks, so failing hooks come after it
            yield
            if transaction.get_rollback(using):
                raise transaction.TransactionManagementError(BROKEN)
    except Exception:
        if not has_committed:
            raise
        logger.exception("a hook of transaction.on_commit failed after an atomic step was committed; the step stands")


@contextmanager
def kept_open(using: str, ended: Exception | None = None) -> Iterator[None]:
    """Raise `ended` if the block ends the transaction that is open around it; None is the CriticalError of an atomic
    step's function.

    Sends no statement: it checks the connection's state after each statement. A statement that ends the transaction and
    begins another one goes unnoticed.
    """
    connection = connections[using]
    ending = _Ending(connection)
    with ending.noticed():
        try:
            yield
        except Exception as error:
            if ending.has_happened():
                raise ended or CriticalError(ENDED) from error
            raise
        if ending.has_happened():
            raise ended or CriticalError(ENDED)


def is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a statement has failed in the open transaction of PostgreSQL, which then commits nothing."""
    raw = driver_connection(connection)
    if raw is None or connection.vendor != "postgresql":
        return False
    return bool(getattr(raw, "pgconn", raw).transaction_status == _OPEN[1])


def has_ended(connection: BaseDatabaseWrapper) -> bool:
    """Return whether PostgreSQL's session is gone, and with it the transaction that was open."""
    raw = driver_connection(connection)
    return connection.vendor == "postgresql" and (raw is None or bool(getattr(raw, "closed", False)))


class _Ending:
    """Detects the end of a connection's transaction, on PostgreSQL and SQLite."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._raw = driver_connection(connection)
        self._was_open = False
        self._has_happened = False

    def noticed(self) -> AbstractContextManager[None]:
        if self._raw is None:
            return nullcontext()
        if self._connection.vendor == "sqlite":
            return self._connection.execute_wrapper(self._look_after)
        if self._connection.vendor == "postgresql" and hasattr(type(self._raw), "wait"):
            return self._looking_after_waits()
        return nullcontext()

    def has_happened(self) -> bool:
        self._look()
        return self._has_happened

    def _look(self) -> None:
        if (
            self._raw is None
            or self._connection.closed_in_transaction
            or self._raw is not driver_connection(self._connection)
        ):
            return  # a connection that the function has closed is reported by the next statement
        if self._connection.vendor == "sqlite":
            self._has_happened |= not self._raw.in_transaction
        elif self._connection.vendor == "postgresql":
            # psycopg begins the transaction with the first statement; until then the connection may be set up
            status = getattr(self._raw, "pgconn", self._raw).transaction_status
            self._was_open |= status in _OPEN
            self._has_happened |= self._was_open and status == _IDLE

    def _look_after(self, execute: Callable[..., Any], *call: Any) -> Any:
        try:
            return execute(*call)
        finally:
            self._look()

    @contextmanager
    def _looking_after_waits(self) -> Iterator[None]:
        """Check after each statement: every statement of psycopg calls its connection's `wait`; see
        `durable.store.sessions`.
        """
        attributes, wait = vars(self._raw), self._raw.wait
        before = attributes.get("wait")

        def looking(generator: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                answer = wait(generator, *args, **kwargs)
                if "execute" in getattr(generator, "__name__", ""):  # psycopg has begun the transaction before
                    self._was_open = True
                return answer
            finally:
                self._look()

        attributes["wait"] = looking
        try:
            yield
        finally:
            if before is None:
                del attributes["wait"]
            else:
                attributes["wait"] = before


#: Seconds: much longer than durable's own statements lock a row, and much shorter than the shortest lease.
PATIENCE: Final = 0.2
_LOCK_NOT_AVAILABLE: Final = "55P03"  # SQLSTATE


class RowsLocked(Exception):
    """Another transaction has locked a row to be written; nothing was written."""


def set_patience(alias: str, seconds: float = PATIENCE) -> None:
    """Limit waits for locks until the end of the open transaction."""
    if connections[alias].vendor == "postgresql":
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{seconds}s"])


@contextmanager
def impatient(alias: str) -> Iterator[None]:
    """Return a transaction that waits at most `PATIENCE` for each lock; raises RowsLocked otherwise."""
    with or_locked(), transaction.atomic(using=alias):
        set_patience(alias)
        yield


@contextmanager
def or_locked() -> Iterator[None]:
    """Raise RowsLocked if the database reports that a lock was not available in time."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise RowsLocked from error
