"""A time limit for each statement of a page, a list or a search: `with reading(): ...`.

Operators' queries must not occupy the database for minutes, whatever its tables and statistics are like. PostgreSQL
ends a statement after `DURABLE["STATEMENT_TIMEOUT"]`. The limit is set for one transaction (`SET LOCAL`), so it works
behind a pooler in transaction mode and never affects a statement of a run. Other databases have no limit here.

Neither does PostgreSQL compile these statements (`jit`): it decides by estimates that are far off for them, and a page
would wait a quarter of a second for the compilation of a statement that takes milliseconds. With a limit of 0, for
none, that remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.conf import conf

_QUERY_CANCELED = "57014"

# A shorter limit that is already set, for example the role's, stays in force. The previous values are returned.
_LIMIT = """
SELECT before, jit, CASE WHEN %(seconds)s > 0 AND (before = '0' OR before::interval > make_interval(secs => %(seconds)s))
  THEN set_config('statement_timeout', %(limit)s, true) END, set_config('jit', 'off', true)
FROM (SELECT current_setting('statement_timeout') AS before, current_setting('jit') AS jit OFFSET 0) AS now
"""
_AS_BEFORE = "SELECT set_config('statement_timeout', %s, true), set_config('jit', %s, true)"


class StatementTimeoutError(Exception):
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
    """Apply the limit to each statement on durable's database in the block.

    Raises StatementTimeoutError when it is reached.

    The block is one transaction, or a savepoint within the caller's transaction. Do not wait in the block.
    """
    seconds, connection = conf.STATEMENT_TIMEOUT, connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        yield
        return
    is_nested = connection.in_atomic_block
    try:
        with transaction.atomic(using=conf.DATABASE):
            before = _limited(connection, seconds)
            yield
            if is_nested and not connection.needs_rollback:
                with connection.cursor() as cursor:
                    cursor.execute(_AS_BEFORE, before)
    except OperationalError as error:
        if is_statement_timeout(error):
            raise StatementTimeoutError(seconds) from error
        raise


def is_statement_timeout(error: BaseException) -> bool:
    """Return whether PostgreSQL has ended a statement because it took too long."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) == _QUERY_CANCELED


def _limited(connection: BaseDatabaseWrapper, seconds: float) -> tuple[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(_LIMIT, {"seconds": seconds, "limit": f"{max(1, round(seconds * 1000))}ms"})
        [(timeout, jit, *_)] = cursor.fetchall()
    return str(timeout), str(jit)
