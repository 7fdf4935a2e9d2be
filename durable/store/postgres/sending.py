"""Commits that one thread sends on the connection of another, without waiting for the answer.

Owns which sessions are ready for that, and the exchange with libpq, which never blocks. The answer is interpreted where
that of any call is (`durable.store.postgres.libpq`), whatever it is. Must not decide when a commit is sent.

The sending thread holds the lock of psycopg's connection until the answer is there, so that no statement of another
thread comes between.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from django.db import connections
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from durable.core.records import Batch, Committed
from durable.store import sessions
from durable.store.postgres.libpq import SQLFunction, decisive, has_names


class PostgresCommit:
    """A commit of entries alone, sent from another thread than that of the connection, which waits meanwhile.

    Nothing blocks. See `durable.drivers.host.SentSave`.
    """

    def __init__(self, of: PostgresCommits, connection: Any, raw: Any, socket: int) -> None:
        self.connection = connection
        #: False as long as part of the statement waits for the socket to be writable.
        self.is_flushed = True
        self._of = of
        self._batch: Batch
        self._raw = raw
        self._socket = socket
        self._results: list[PGresult] = []
        self._error: Exception | None = None

    def fileno(self) -> int:
        """Return a descriptor of its own for the socket, the same for all commits on a connection."""
        return self._socket

    def send(self, batch: Batch) -> bool:
        """Send the commit of the batch. Return False if the session is not prepared for it; nothing was sent.

        The caller watches `fileno` by now, and no descriptor of another connection.
        """
        self._batch = batch
        self._of.close_earlier()
        function, texts = self._of.call_of(batch)
        if not function.has_name(self._raw, self.connection.alias):
            return False
        values = [None if each is None else each.encode() for each in texts]
        setattr(self._raw, sessions.SENDING, self)
        try:
            self._raw.pgconn.send_query_prepared(function.prepared_name, values)
            self.is_flushed = not self._raw.pgconn.flush()
        except psycopg.Error as error:
            self._error, self.is_flushed = error, False  # `proceed` is called as soon as the socket is writable
        return True

    def proceed(self) -> bool:
        """Send what is left and take what has come. Return True once the answer or an error is there."""
        if self._error is not None:
            return True
        pgconn = self._raw.pgconn
        try:
            with suppress(psycopg.OperationalError):  # a broken connection, of which libpq makes a result
                pgconn.consume_input()
                self.is_flushed = not pgconn.flush()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    return True
                self._results.append(result)
        except psycopg.Error as error:  # the connection was closed
            self._error = error
            return True
        return False

    def close(self) -> None:
        """Leave the connection to its thread."""
        vars(self._raw).pop(sessions.SENDING, None)
        self._raw.lock.release()

    def answer(self) -> PGresult:
        """Return the result that decides. Raises psycopg's errors."""
        if self._error is not None:
            raise self._error
        return decisive(self._results)

    @property
    def is_plain(self) -> bool:
        """Whether the answer has come and is a row whose only column is empty: there is no request."""
        if self._error is not None or len(self._results) != 1:
            return False
        [result] = self._results
        return result.status == ExecStatus.TUPLES_OK and result.get_value(0, 0) == b""

    def committed(self) -> Committed:
        """Return or raise what `Store.commit` would have. In the thread of the connection unless `is_plain`."""
        return self._of.committed(self._batch, self)


class PostgresCommits:
    """Commits that another thread sends on the connection of the thread that has made this object."""

    def __init__(
        self,
        alias: str,
        call_of: Callable[[Batch], tuple[SQLFunction, list[str | None]]],
        committed: Callable[[Batch, PostgresCommit], Committed],
    ) -> None:
        self.call_of = call_of
        self.committed = committed
        self._connection: Any = connections[alias]
        self._raw: Any = None
        #: The descriptor of the newest session, after those that may be watched.
        self._sockets: list[int] = []

    def open(self) -> PostgresCommit | None:
        """Reserve the connection for a commit; None if the session is not ready for that."""
        connection = self._connection
        raw = sessions.driver_connection(connection)
        if raw is None or not has_names(raw, connection.alias) or not _is_ready(connection, raw):
            return None
        if not raw.lock.acquire(blocking=False):
            return None
        try:
            if raw is not self._raw:
                self._sockets.append(os.dup(raw.pgconn.socket))
                self._raw = raw
        except (OSError, psycopg.Error):  # the connection is broken, or there are too many open files
            raw.lock.release()
            return None
        return PostgresCommit(self, connection, raw, self._sockets[-1])

    def close_earlier(self) -> None:
        """Close the descriptors of earlier sessions: that of the newest one is watched instead."""
        while len(self._sockets) > 1:
            os.close(self._sockets.pop(0))

    def close(self) -> None:
        while self._sockets:
            os.close(self._sockets.pop())
        self._raw = None


def _is_ready(connection: Any, raw: Any) -> bool:
    """Return True if nothing has to happen in the session before a commit; see `libpq` for what may have to."""
    if connection.in_atomic_block or connection.needs_rollback or not raw.autocommit:
        return False
    if connection.health_check_enabled and not connection.health_check_done:
        return False
    pgconn = raw.pgconn
    is_idle = pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF
    return is_idle and sessions.is_as_new(connection) and not sessions.is_observed(connection)
