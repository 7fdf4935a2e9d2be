"""How people's queries read the database: with a time limit for each statement, and from a replica if there is one.

Operators' queries must not occupy the database for minutes, whatever its tables and statistics are like. PostgreSQL
ends a statement after `DURABLE["STATEMENT_TIMEOUT"]`. The limit is set for one transaction (`SET LOCAL`), so it works
behind a pooler in transaction mode and never affects a statement of a run. Other databases have no limit here.

Neither does PostgreSQL compile these statements (`jit`): it decides by estimates that are far off for them, and a page
would wait a quarter of a second for the compilation of a statement that takes milliseconds. With a limit of 0, for
none, that remains.

Lists, charts, causes, exports and metrics are read from `DURABLE["READ_DATABASE"]`, a standby of durable's database.
What is read there is old by the standby's delay (`age`), so everything that decides something reads the primary. A
standby that does not answer costs nothing but a line in the log: the primary is read for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from django.db import (
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.conf import conf

logger = logging.getLogger("durable.inspection")

_QUERY_CANCELED = "57014"

# A shorter limit that is already set, for example the role's, stays in force. The previous values are returned.
_LIMIT = """
SELECT before, jit, CASE WHEN %(seconds)s > 0 AND (before = '0' OR before::interval > make_interval(secs => %(seconds)s))
  THEN set_config('statement_timeout', %(limit)s, true) END, set_config('jit', 'off', true)
FROM (SELECT current_setting('statement_timeout') AS before, current_setting('jit') AS jit OFFSET 0) AS now
"""
_AS_BEFORE = "SELECT set_config('statement_timeout', %s, true), set_config('jit', %s, true)"


class UnreadableError(Exception):
    """The database did not give what people asked for. The text says why, and what to do."""


class StatementTimeoutError(UnreadableError):
    """A statement took longer than `seconds`, and PostgreSQL has ended it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f'the database took longer than {seconds:g} s, the limit that DURABLE["STATEMENT_TIMEOUT"] sets for a '
            "statement of a list, a search or a page. Ask for less (a state, a workflow, a shorter time), or try again "
            "later; if it happens again, ANALYZE durable's tables"
        )


@contextmanager
def reading() -> Iterator[None]:
    """Apply the limit to each statement on the database of `read_alias()` in the block.

    Raises StatementTimeoutError when it is reached.

    The block is one transaction, or a savepoint within the caller's transaction. Do not wait in the block.
    """
    seconds, connection = conf.STATEMENT_TIMEOUT, connections[read_alias()]
    if connection.vendor != "postgresql":
        yield
        return
    is_nested = connection.in_atomic_block
    try:
        with transaction.atomic(using=connection.alias):
            before = _limited(connection, seconds)
            yield
            if is_nested and not connection.needs_rollback:
                with connection.cursor() as cursor:
                    cursor.execute(_AS_BEFORE, before)
    except OperationalError as error:
        if is_statement_timeout(error):
            raise StatementTimeoutError(seconds) from error
        raise


def savepoint(alias: str) -> AbstractContextManager[None]:
    """Let a transaction that is open go on after an error in the block. Costs no statement where none is open."""
    return transaction.atomic(using=alias) if connections[alias].in_atomic_block else nullcontext()


def is_statement_timeout(error: BaseException) -> bool:
    """Return whether PostgreSQL has ended a statement because it took too long."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) == _QUERY_CANCELED


def _limited(connection: BaseDatabaseWrapper, seconds: float) -> tuple[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(_LIMIT, {"seconds": seconds, "limit": f"{max(1, round(seconds * 1000))}ms"})
        [(timeout, jit, *_)] = cursor.fetchall()
    return str(timeout), str(jit)


# What a standby raises that is away, in recovery, or without the newest migrations. Wrong values are not among them.
_LOSSES: Final = (OperationalError, InterfaceError, InternalError, ProgrammingError)
RETRY: Final = 10.0  # seconds for which the primary is read after the replica has failed

# The age of what a standby shows. It shows the newest if it has applied what it has received, and still receives.
_AGE = """
SELECT pg_is_in_recovery(), CASE
  WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS (SELECT FROM pg_stat_wal_receiver) THEN 0
  ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a list is read: a database alias. `age` is how many seconds old it may be, None if unknown.

    `is_instead`: the primary, because the replica does not answer.
    """

    alias: str
    is_replica: bool = False
    is_instead: bool = False
    age: float | None = 0.0


class ReplicaLostError(UnreadableError):
    """The replica has failed while it was read. What is read next is read from the primary."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"the read replica has ended the query ({type(error).__name__}: {error}). Try again: for {RETRY:g} s the "
            "primary is read"
        )


_source: ContextVar[Source | None] = ContextVar("durable_source", default=None)
_failed_until = 0.0  # monotonic, of this process


def source() -> Source | None:
    """Return where the block of `from_replica` reads; None outside of one, or if no replica is configured."""
    return _source.get()


def read_alias() -> str:
    """Return the alias of the database to read: the replica's in a block of `from_replica`, else durable's."""
    found = _source.get()
    return conf.DATABASE if found is None else found.alias


@contextmanager
def from_replica(*, wanted: bool = True) -> Iterator[Source | None]:
    """Have the queries of the block read the replica, if one is configured, answers and is `wanted`.

    Yields where they read, None without a replica. Raises ReplicaLostError if the replica fails in the block. Nothing
    in the block may write.
    """
    found = _chosen() if wanted and conf.READ_DATABASE else None
    token = _source.set(found)
    try:
        yield found
    except Error as error:
        if (loss := lost(error)) is None:
            raise
        raise loss from error
    finally:
        _source.reset(token)


def lost(error: BaseException) -> ReplicaLostError | None:
    """Return what an error in a block of `from_replica` means if the replica was read there; the primary is next."""
    found = _source.get()
    if found is None or not found.is_replica or not isinstance(error, _LOSSES):
        return None
    _failed(error)
    return ReplicaLostError(error)


def _chosen() -> Source:
    primary = Source(conf.DATABASE, is_instead=True)
    if time.monotonic() < _failed_until:
        return primary
    connection = connections[conf.READ_DATABASE]
    if connection.vendor != "postgresql":
        return Source(connection.alias, is_replica=True, age=None)
    try:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        with connection.cursor() as cursor:
            cursor.execute(_AGE)
            [(is_standby, age)] = cursor.fetchall()
    except Error as error:
        _failed(error)
        return primary
    if not is_standby:  # a promoted standby has stopped to follow, and would show old rows as the newest
        _failed(OperationalError("it is not a standby; was it promoted?"))
        return primary
    return Source(connection.alias, is_replica=True, age=None if age is None else max(0.0, float(age)))


def _failed(error: BaseException) -> None:
    global _failed_until
    text = 'READ_DATABASE "%s" cannot be read, the primary is read instead for %g s: %s: %s'
    logger.warning(text, conf.READ_DATABASE, RETRY, type(error).__name__, str(error).strip())
    _failed_until = time.monotonic() + RETRY
    connection = connections[conf.READ_DATABASE]
    if not connection.in_atomic_block:
        connection.close()
