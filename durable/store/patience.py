"""Limits of a statement's wait for a lock, where waiting would do more harm than trying again later.

Owns that limit and the error which says that it was reached. The thread that keeps a worker's leases must not wait for
what one transaction has locked: all runs of the worker would lose their leases. Has an effect on PostgreSQL only:
SQLite has one lock, whose wait the database's own settings limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import OperationalError, connections, transaction

#: Seconds: many times what a statement of durable's own locks a row for, and a small part of the shortest lease.
PATIENCE: Final = 0.2
_LOCK_NOT_AVAILABLE: Final = "55P03"  # SQLSTATE


class RowsLocked(Exception):
    """Another transaction has locked a row that was to be written; nothing was written."""


def set_patience(alias: str, seconds: float = PATIENCE) -> None:
    """Limit the waits for locks until the end of the transaction, which must have begun."""
    if connections[alias].vendor == "postgresql":
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{seconds}s"])


@contextmanager
def impatient(alias: str) -> Iterator[None]:
    """Return a transaction that waits for each lock for `PATIENCE` at most; raises RowsLocked otherwise."""
    with or_locked(), transaction.atomic(using=alias):
        set_patience(alias)
        yield


@contextmanager
def or_locked() -> Iterator[None]:
    """Raise RowsLocked for the database's error that a lock was not available in time."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise RowsLocked from error
