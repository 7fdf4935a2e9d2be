"""Execute statements and database functions without Django's cursors.

Owns the shortest way to PostgreSQL that Django's connection allows: its cursors cost more than what they execute here,
and its loader of times more than all other columns. What Django checks for a connection is checked here as well (health
checks, threads, async code, broken transactions, its own exceptions). Where code observes statements, they go through
Django's cursor. Only function calls are prepared by name: these statements are few and the same each time.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

import psycopg
from django.db import InternalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe
from psycopg.abc import Buffer
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import DiagnosticField, Escaping, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader

from durable.conf import conf
from durable.core.clock import EARLIEST, LATEST
from durable.store import sessions

Row = tuple[str | None, ...]

_AT_ONCE: Final = 1000  # rows of a stream that libpq holds
_USES: Final = 6  # calls of a function by a connection after which preparing it pays
_FORGOTTEN: Final = b"26000"  # SQLSTATE of a prepared statement that does not exist
_KNOWN: Final = b"42P05"  # SQLSTATE of one that exists already
#: The databases to which this process sends no names any more, by alias: one of their sessions has lost a statement.
_unnamed: set[str] = set()
#: Those of them of which the log does not say so yet.
_unreported: set[str] = set()
logger = logging.getLogger("durable.store")
_ANSWERED: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class SentCall(Protocol):
    """A call that another thread has sent, and its answer (`durable.store.postgres.sending`)."""

    connection: Any

    def answer(self) -> PGresult:
        """Return the result that decides. Raises psycopg's errors."""


class SQLFunction:
    """A function in the database: its name, the types of its parameters and, if it has several, its columns."""

    def __init__(
        self,
        name: str,
        types: Sequence[str],
        columns: Sequence[str] = (),
        *,
        statement: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        self.name = name
        self.types = types
        self.columns = columns
        make = statement or self._statement
        self._direct = make([f"${number}" for number in range(1, len(types) + 1)]).encode()
        #: Sent beside the statement: casts in the statement would have to be parsed.
        self._types = [psycopg.adapters.types[type].oid for type in types]
        # by its text: sessions behind a pooler may have those of another release, too
        digest = hashlib.blake2b(b"\0".join([self._direct, *(each.encode() for each in types)]), digest_size=8)
        self.prepared_name = f"durable_{digest.hexdigest()}".encode()
        self._portable = make([f"%s::{type}" for type in types])

    def followed_by(self, then: SQLFunction, setting: str) -> SQLFunction:
        """Return a statement that calls this function and then, unless this one's first column is NULL, the other
        function.

        Its parameters are those of both. Its row is that of this function, with the other's value as a last column. The
        setting named `setting` has the first parameter meanwhile. The other function resets it.
        """

        def statement(parameters: Sequence[str]) -> str:
            # the calls stand in the order of their parameters, which the portable statement does not number
            (first, *own), others = parameters[: len(self.types)], parameters[len(self.types) :]
            columns = self.columns or ["answer"]
            call = f"{self.name}({', '.join(['setting.value', *own])})" + ("" if self.columns else " AS answer")
            second = f"CASE WHEN {columns[0]} IS NOT NULL THEN {then.name}({', '.join(others)})::text"
            return (
                f"WITH setting AS MATERIALIZED (SELECT set_config('{setting}', {first}, true) AS value), "  # noqa: S608  # names of functions
                f"first AS MATERIALIZED (SELECT {', '.join(columns)} FROM setting, LATERAL {call}) "
                f"SELECT {', '.join(f'{each}::text' for each in columns)}, "
                f"{second} ELSE NULLIF(set_config('{setting}', '', true), '') END FROM first"
            )

        return SQLFunction(f"{self.name}+{then.name}", [*self.types, *then.types], statement=statement)

    def _statement(self, parameters: Sequence[str]) -> str:
        call = f"{self.name}({', '.join(parameters)})"
        if not self.columns:
            return f"SELECT {call}::text"
        return f"SELECT {', '.join(f'{each}::text' for each in self.columns)} FROM {call}"  # noqa: S608

    def __call__(
        self, alias: str, texts: Sequence[str | None], *, uninterrupted: bool = False, sent: SentCall | None = None
    ) -> Row:
        """Call the function with parameters given as text, and return its row. Raises Django's database errors.

        If the call was `sent` by another thread, take its answer.

        With `uninterrupted`, Python's signal handlers do not run before the answer has come, which is faster. This is
        for the engine's own commits, not for what the code of a step calls, because that has a timeout.
        """
        connection: Any = connections[alias] if sent is None else sent.connection
        try:
            if sent is not None:
                return self._answered(sent)
            return self._called(connection, texts, uninterrupted=uninterrupted)
        except InternalError as error:
            raise sessions.refused(connection, error) from error.__cause__
        finally:
            if _unreported:  # here nothing holds the lock of the connection, which a handler of logs may use
                _report_lost()

    def _called(self, connection: Any, texts: Sequence[str | None], *, uninterrupted: bool) -> Row:
        if sessions.is_observed(connection):
            return _through_cursor(connection, self._portable, texts)
        _make_ready(connection)
        raw: psycopg.Connection[Any] = sessions.driver_connection(connection)
        status = raw.pgconn.transaction_status
        if status == TransactionStatus.IDLE and not raw.autocommit:  # a transaction that psycopg has yet to begin
            return _through_cursor(connection, self._portable, texts)
        # psycopg's annotation lacks None, which is NULL
        values: Any = [None if each is None else each.encode() for each in texts]
        try:
            with raw.lock:
                if sessions.restored_by(connection):
                    return _row(raw.pgconn.exec_(self._after(sessions.preface(connection), raw.pgconn, values)))
                # in a transaction never by name: a forgotten statement would break the transaction
                if status == TransactionStatus.IDLE and self._is_prepared(raw, connection.alias):
                    answer = self._answer(raw, values, by_name=True, uninterrupted=uninterrupted)
                    if answer.error_field(DiagnosticField.SQLSTATE) != _FORGOTTEN:
                        return _row(answer)
                    _forget_names(raw, connection.alias)
                return _row(self._answer(raw, values, by_name=False, uninterrupted=uninterrupted))
        except BaseException:
            if raw.pgconn.transaction_status == TransactionStatus.ACTIVE:  # an unread answer is outstanding
                connection.close()
            with connection.wrap_database_errors:  # here only: this is for each call
                raise

    @staticmethod
    def _answered(sent: SentCall) -> Row:
        """Return the row of a call that was sent. Raises Django's database errors, for a forgotten statement too: other
        code may have begun a transaction since, and what is repeated in it would end with it.
        """
        connection = sent.connection
        with connection.wrap_database_errors:
            answer = sent.answer()
            if answer.error_field(DiagnosticField.SQLSTATE) == _FORGOTTEN:
                _forget_names(sessions.driver_connection(connection), connection.alias)
            return _row(answer)

    def _answer(self, raw: psycopg.Connection[Any], values: Any, *, by_name: bool, uninterrupted: bool) -> PGresult:
        pgconn = raw.pgconn
        if uninterrupted:  # libpq waits, lets other threads run meanwhile, and returns the last result
            if by_name:
                return pgconn.exec_prepared(self.prepared_name, values)
            return pgconn.exec_params(self._direct, values, self._types)
        if by_name:
            send = partial(pgconn.send_query_prepared, self.prepared_name, values)
        else:
            send = partial(pgconn.send_query_params, self._direct, values, self._types)
        return decisive(raw.wait(_Sent(raw, send)))

    def _after(self, preface: str, pgconn: PGconn, values: Sequence[bytes | None]) -> bytes:
        """Send the statements of `preface` and the call as one message; return the answer of the call."""
        quoted = [b"NULL" if each is None else Escaping(pgconn).escape_literal(each) for each in values]
        pieces = self._portable.encode().split(b"%s")
        call = b"".join(piece + value for piece, value in zip(pieces, [*quoted, b""], strict=True))
        return preface.encode() + b"; " + call

    def has_name(self, raw: Any, alias: str) -> bool:
        """Return True if the session has the statement prepared."""
        known: _Session | None = vars(raw).get("_durable_calls")
        return known is not None and self.name in known.prepared and _names_are_used(alias)

    def _is_prepared(self, raw: Any, alias: str) -> bool:
        """Return True if the session has the statement prepared; prepare it once that pays."""
        if not _names_are_used(alias):
            return False
        # kept beside psycopg's own state: a pool gives the same session to one Django connection after the other
        known: _Session | None = vars(raw).get("_durable_calls")
        if known is None:
            known = raw._durable_calls = _Session()
        if self.name in known.prepared:
            return True
        known.uses[self.name] += 1
        if known.uses[self.name] < _USES:
            return False
        answer = raw.pgconn.prepare(self.prepared_name, self._direct, self._types)
        if answer.error_field(DiagnosticField.SQLSTATE) != _KNOWN:
            _check(answer)
        elif conf.PREPARED_STATEMENTS == "auto":  # by another client of the same session
            _note_lost(alias)
            return False
        known.prepared.add(self.name)
        return True


def has_names(raw: Any, alias: str) -> bool:
    """Return True if the session has any statement of a function prepared."""
    return _names_are_used(alias) and "_durable_calls" in vars(raw) and bool(raw._durable_calls.prepared)


def _names_are_used(alias: str) -> bool:
    wanted = conf.PREPARED_STATEMENTS
    return bool(wanted) and not (wanted == "auto" and alias in _unnamed)


def _forget_names(raw: Any, alias: str) -> None:
    """Note that the session's prepared statements were discarded; nothing was executed."""
    vars(raw).pop("_durable_calls", None)
    _note_lost(alias)


def _note_lost(alias: str) -> None:
    """Send statements without names from now on, if the settings leave it to durable: sessions seem to be shared."""
    if conf.PREPARED_STATEMENTS == "auto" and alias not in _unnamed:
        _unnamed.add(alias)
        _unreported.add(alias)


def _report_lost() -> None:
    """Log, once for each database, that its statements have no names any more."""
    text = (
        'the database "%s" does not keep prepared statements, as behind a pooler in transaction mode: this process '
        'sends whole statements from now on; DURABLE["PREPARED_STATEMENTS"] = False does so from the start'
    )
    try:
        alias = _unreported.pop()
    except KeyError:  # another thread reports it
        return
    logger.warning(text, alias)


class _Sent(Generator[Any, Any, list[PGresult]]):
    """Psycopg's wait for the results of the statement that `send` sends.

    The statement is sent inside psycopg's wait, which cancels the statement after a signal handler's KeyboardInterrupt
    or SystemExit: half of the signals during a call come while it is sent. Unlike a generator function, this generator
    survives an exception raised in it, because psycopg then continues it to clean up.
    """

    def __init__(self, raw: psycopg.Connection[Any], send: Callable[[], None]) -> None:
        self._send: Callable[[], None] | None = send
        self._waiting = execute(raw.pgconn)

    def send(self, value: Any) -> Any:
        send, self._send = self._send, None
        if send is not None:
            send()
        return self._waiting.send(value)

    def throw(self, *error: Any) -> Any:
        return self._waiting.throw(*error)


class _Session:
    """The state of a session: how often each function was called, and the names of the prepared statements."""

    __slots__ = ("prepared", "uses")

    def __init__(self) -> None:
        self.uses: Counter[str] = Counter()
        self.prepared: set[str] = set()


def rows(alias: str, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]] | None:
    """Return the rows of a statement.

    Return None if Django's cursor has to be used, because code observes statements or the connection's time zone is not
    UTC.
    """
    connection: Any = connections[alias]
    if sessions.is_observed(connection) or connection.timezone is not UTC:
        return None
    with sessions.not_noted(connection), connection.wrap_database_errors:
        _make_ready(connection)
        cursor = psycopg.Cursor(sessions.driver_connection(connection)).execute(
            statement, parameters, prepare=False, binary=True
        )
        return fetched(cursor)


def streamed(
    alias: str, statement: str, parameters: Mapping[str, Any]
) -> Generator[tuple[Any, ...], None, None] | None:
    """Return the rows of a statement that only reads, as they come: neither they nor libpq's copy are all in memory.

    The caller closes the generator: until its end it holds the connection. Return None as `rows` does. Raises DataError
    for a time that Python cannot read.
    """
    connection: Any = connections[alias]
    if connection.in_atomic_block or not psycopg.capabilities.has_stream_chunked():
        found = rows(alias, statement, parameters)  # what ends a stream early breaks the transaction
        return None if found is None else (each for each in found)
    if sessions.is_observed(connection) or connection.timezone is not UTC:
        return None
    return _streamed(connection, statement, parameters)


def _streamed(connection: Any, statement: str, parameters: Mapping[str, Any]) -> Generator[tuple[Any, ...], None, None]:
    with sessions.not_noted(connection), connection.wrap_database_errors:
        _make_ready(connection)
        cursor = psycopg.Cursor(sessions.driver_connection(connection))
        yield from cursor.stream(statement, parameters, binary=True, size=_AT_ONCE)


def fetched(cursor: psycopg.Cursor[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of the statement that `cursor` has executed.

    A time that Python cannot read becomes LATEST or EARLIEST. Then the rows are converted again, not queried again: the
    statement may have changed rows, as a claim does.
    """
    if cursor.pgresult is None or not cursor.pgresult.nfields:  # `description` makes an object for each column
        return []
    try:
        return cursor.fetchall()
    except psycopg.DataError:
        for loader in (_BoundedText, _BoundedBinary):
            cursor.adapters.register_loader("timestamptz", loader)
        transformer = Transformer(cursor)
        transformer.set_pgresult(cursor.pgresult)
        return transformer.load_rows(0, cursor.rowcount, tuple)


class _BoundedText(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST


class _BoundedBinary(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return EARLIEST if bytes(data)[0] & 0x80 else LATEST  # the sign of the number


def text(value: str | int | datetime) -> str:
    """Return a column's value in PostgreSQL's text form."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


@async_unsafe
def _make_ready(connection: BaseDatabaseWrapper) -> None:
    """Do what Django does before it returns a cursor and before it executes a statement."""
    connection.close_if_health_check_failed()
    if connection.connection is None:
        connection.ensure_connection()
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()


def _through_cursor(connection: BaseDatabaseWrapper, statement: str, texts: Sequence[str | None]) -> Row:
    with sessions.not_noted(connection), connection.cursor() as cursor:
        cursor.execute(statement, texts)
        row: Row = cursor.fetchone()
        return row


def decisive(results: Sequence[PGresult]) -> PGresult:
    """Return the result that decides whether a statement succeeded: the last error, or else the last result.

    In autocommit, a statement has its own result first; if its COMMIT fails, that is a second result.
    """
    errors = [each for each in results if each.status not in _ANSWERED]
    if not results:
        raise psycopg.OperationalError("the connection was closed while an answer was waited for")
    return (errors or results)[-1]


def _check(answer: PGresult) -> None:
    if answer.status in _ANSWERED:
        return
    # reported by libpq, not by the server: the connection broke
    if answer.error_field(DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(answer.error_message.decode(errors="replace"))
    raise error_from_result(answer)


def _row(answer: PGresult) -> Row:
    _check(answer)
    values = [answer.get_value(0, column) for column in range(answer.nfields)]
    return tuple([None if value is None else value.decode() for value in values])
