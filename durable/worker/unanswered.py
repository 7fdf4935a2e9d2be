"""Statements that get no answer: they are logged and ended, so that the waiting threads can continue.

A host that vanishes closes no connection. A thread that waits for its answer waits for minutes, and no error says so.
Here the connection is ended, by its socket: a request to cancel a statement would go to the same host. The thread gets
an OperationalError, as from a connection that broke, and tries again with another one.

- `answered_within` is for a thread that never waits for locks and asks for little, that of leases or of deadlines. If
  it gets no answer until leases run out, the database is gone, for all threads of the process.
- `Statements` is what such a thread knows of the others: theirs may wait for locks, so the server is asked whether it
  is busy with one that has had no answer for so long.

A statement of a step's code may take hours. It is ended only if the server has no such session: then another server has
taken over, and nobody executes the statement. That happens while the old one is frozen: its kernel answers probes of
the connection, so that no limit of TCP ends it.

Statements are not registered: their thread's frames show whose statement it is, and whether it is the same as at the
last check. A commit that an event loop has sent has no waiting thread, so it is noted at its connection. Only
PostgreSQL has sockets; elsewhere nothing is watched.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from durable.conf import conf
from durable.drivers.timeouts import Deadline, watch
from durable.notifier import redis_clients
from durable.store import sessions

logger = logging.getLogger("durable.worker")

_ACTIVE: Final = 1  # libpq's PQTRANS_ACTIVE
# A server that only waits for its client to take the answer is not busy. Another session's number may be the same. A
# pooler's numbers are not the server's, which shows in that of the asking session: then the answer is unknown.
_IDLE: Final = """SELECT 1 WHERE pg_backend_pid() = %s AND NOT EXISTS (
  SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientWrite')"""
_GONE: Final = """SELECT 1 WHERE pg_backend_pid() = %s AND NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)"""
_DRIVER: Final = ("psycopg", "durable.store.postgres.libpq")
# The modules that any statement passes through on its way to the server: libraries, and durable's own.
_LIBRARIES: Final = ("psycopg", "django", "contextlib", "durable.guard")
_AROUND: Final = (("durable.store.sessions", "wait"), ("durable.store.transactions", "looking"))

_log_this = redis_clients.LogThrottle()
_known: weakref.WeakSet[BaseDatabaseWrapper] = weakref.WeakSet()
_lock = threading.Lock()


def watch_connections() -> None:
    """Watch the connections of this thread, and those that any thread of this process will open."""
    connection_created.connect(_on_created, dispatch_uid="durable.worker.unanswered")
    for connection in connections.all(initialized_only=True):
        _on_created(connection=connection)


def _on_created(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor == "postgresql":
        with _lock:
            _known.add(connection)


class answered_within:  # noqa: N801  # used like a function
    """End waits for durable's database in all threads of this process if the block is still running after `seconds`.

    Checks again each time that so many seconds have passed. The block may wait for Redis too, which ends nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._is_over = False
        self._deadline: Deadline | None = None

    def __enter__(self) -> None:
        if connections[conf.DATABASE].vendor == "postgresql":
            self._deadline = watch(self._seconds, self._look)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = True
        if self._deadline is not None:
            self._deadline.end()

    def _look(self) -> None:
        if self._is_over:
            return
        self._deadline = watch(self._seconds, self._look)
        frames = sys._current_frames()
        if not any(_is_in(_place(each)[0], _DRIVER) for each in _outwards(frames.get(self._thread))):
            return
        _tell(self._seconds)
        for connection in _waiting():
            thread = frames.get(connection._thread_ident)  # type: ignore[attr-defined]  # Django's
            if _sent(connection) is not None or _statement(thread) is not None:
                _shut_down(connection)


class Statements:
    """Durable's own statements that threads of this process wait for, as seen by one thread."""

    def __init__(self) -> None:
        #: The statements under way at the last check, and since when (monotonic). Keeping a frame identifies its call,
        #: and so does an object that an event loop has made for it.
        self._seen: dict[BaseDatabaseWrapper, tuple[object, float]] = {}

    def look(self) -> None:
        """End statements without an answer for as long as a lease lasts, unless the server is busy with them.

        No statement if there are none. Call it repeatedly, at intervals much shorter than a lease.
        """
        waiting, before, now = _waiting(), self._seen, time.monotonic()
        self._seen = {}
        if not waiting:
            return
        frames = sys._current_frames()
        foreign = set()
        for connection in waiting:
            innermost = frames.get(connection._thread_ident)  # type: ignore[attr-defined]  # Django's
            frame: object = _sent(connection) or _statement(innermost)
            if frame is None:
                if innermost is None or not _is_in(_place(innermost)[0], _DRIVER):
                    continue
                frame = innermost
                foreign.add(connection)
            known, since = before.get(connection, (None, now))
            self._seen[connection] = (frame, since if known is frame else now)
        late = [(each, frame) for each, (frame, since) in self._seen.items() if now - since >= conf.LEASE]
        for connection, frame in late:
            if connection in foreign:
                self._seen[connection] = (frame, now)  # asked again after another lease
            if _is_lost(connection, _GONE if connection in foreign else _IDLE):
                _tell(conf.LEASE)
                _shut_down(connection)


def _is_lost(connection: BaseDatabaseWrapper, lost: str) -> bool:
    """Return True if the statement `lost` finds the session of another thread's connection idle, or gone.

    False behind a pooler, which has its own limits for a server that does not answer.
    """
    with suppress(Exception):  # the connection was closed meanwhile
        own = connections[conf.DATABASE]
        with own.cursor() as cursor:
            cursor.execute(lost, [_number(own), _number(connection)])
            return cursor.fetchone() is not None
    return False


def _number(connection: BaseDatabaseWrapper) -> int:
    number: int = sessions.driver_connection(connection).pgconn.backend_pid
    return number


def _waiting() -> list[BaseDatabaseWrapper]:
    """Return the connections to durable's database that wait for an answer."""
    with _lock:
        known = list(_known)
    return [each for each in known if each.alias == conf.DATABASE and _status(each) == _ACTIVE]


def _status(connection: BaseDatabaseWrapper) -> int | None:
    with suppress(Exception):  # the connection is closed, or being opened
        status: int = sessions.driver_connection(connection).pgconn.transaction_status
        return status
    return None


def _sent(connection: BaseDatabaseWrapper) -> object:
    """Return the commit that an event loop has sent on the connection; None if its own thread waits, if any."""
    return getattr(sessions.driver_connection(connection), sessions.SENDING, None)


def _tell(seconds: float) -> None:
    if _log_this("unanswered"):
        logger.error(
            "the database has not answered for %.0f s: the connections that wait for it are ended, and what they were to "
            "do is tried again. docs/guides/deploying.md has the OPTIONS with which that is noticed sooner",
            seconds,
        )


def _statement(frame: FrameType | None) -> FrameType | None:
    """Return the frame of durable that sent the statement for which a thread with this innermost frame waits.

    Return None if other code has sent it.
    """
    is_direct = True
    for each in _outwards(frame):
        module, function = _place(each)
        if _is_in(module, _LIBRARIES) or (module, function) in _AROUND:
            continue
        if is_direct and _is_in(module, ("durable",)):
            return each
        if _is_in(
            module, ("durable.store",)
        ):  # an agent that traces statements stands between the store and the driver
            return each
        is_direct = False
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> tuple[str, str]:
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def _is_in(module: str, packages: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def _shut_down(connection: BaseDatabaseWrapper) -> None:
    """End the statement of another thread's connection. The socket stays open, for libpq to close."""
    with suppress(Exception):  # the connection was closed meanwhile
        pgconn = sessions.driver_connection(connection).pgconn
        number = pgconn.socket
        with socket.socket(fileno=os.dup(number)) as ours:
            if pgconn.transaction_status == _ACTIVE and pgconn.socket == number:
                ours.shutdown(socket.SHUT_RDWR)
