"""Hears of due runs from PostgreSQL, where durable uses no Redis (`durable.notifier.channel` sends it).

Owns the listening connection of a `durable_worker`, one in its parent process, and whether messages arrive on it. The
workers behind it are notified through their pipes; the timer polls while nothing is heard (`Timer.hears`).

Whether messages arrive is tried, not assumed: a pooler in transaction mode accepts `LISTEN` and delivers nothing. So
another connection sends an echo before anything is relied on. It has to be another one: to the sender itself a pooler
may deliver it. Later the listening connection sends itself an echo at times, because a host or a firewall that drops a
connection notifies nobody.

The session is in no transaction while it waits: PostgreSQL keeps messages until each listener has read them, and rows
until each transaction has ended. Where a process is stopped, the sweep of another one ends its session. Nothing here
waits for an answer in the driver, so a stop is noticed at once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as DriverError
from psycopg import sql

from durable.conf import conf
from durable.execution.connections import close_connections
from durable.notifier import channel, redis_clients, wakeups
from durable.store.sessions import driver_connection
from durable.worker.presence import RETRY
from durable.worker.timer import Timer

logger = logging.getLogger("durable.timer")

# Seconds without an echo after which nothing is heard, and between two echoes of a connection on which they arrive.
SILENCE: Final = 2.0
ECHO_EVERY: Final = 15.0
# The most seconds between two tries to connect, and the seconds until it is tried again whether messages arrive.
LONGEST_PAUSE: Final = 30.0
TRY_AGAIN: Final = 60.0
# Seconds in which a connection has to be made, unless the project's OPTIONS say.
CONNECT_TIMEOUT: Final = 5

_log_this = redis_clients.LogThrottle()


class Deaf(Exception):
    """Nothing that is sent on the channel arrives."""


class PostgresListener:
    """Listens while its `with` block lasts, and notifies the workers and the timer."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._stopping = threading.Event()
        self._wakeup = os.pipe()
        self._thread = threading.Thread(target=self._listen_always, name="durable-listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        os.write(self._wakeup[1], b"\0")
        self._thread.join(2 * CONNECT_TIMEOUT)
        if not self._thread.is_alive():
            for each in self._wakeup:
                os.close(each)

    def _listen_always(self) -> None:
        pause = RETRY
        while not self._stopping.is_set():
            try:
                self._listen()
            except Deaf:
                if self._timer.hears:  # the connection has vanished
                    pause = RETRY
                else:
                    self._tell_deaf()
                    pause = TRY_AGAIN
            except Exception as error:  # the thread must survive every error
                pause = RETRY if self._timer.hears else min(pause * 2, LONGEST_PAUSE)
                if _log_this("lost"):
                    is_usual = isinstance(error, (Error, DriverError, OSError))
                    text = "not listening to PostgreSQL, polling every %g s until that is possible again: %s: %s"
                    details = (conf.POLL_INTERVAL, type(error).__name__, error)
                    logger.warning(text, *details, exc_info=None if is_usual else error)
            self._set_hears(value=False)
            self._stopping.wait(pause)

    def _listen(self) -> None:
        """Listen until a stop is requested. Raises Deaf, or the driver's error if the connection breaks."""
        connection = _own_connection()
        try:
            connection.connect()
            connection.set_autocommit(True)
            session = _Session(driver_connection(connection), self._on_message)
            try:
                self._hear(session)
            except Deaf:
                session.unlisten()
                raise
        finally:
            connection.close()

    def _hear(self, session: _Session) -> None:
        token = secrets.token_hex(8)
        try:
            with connections[conf.DATABASE].cursor() as cursor:
                cursor.execute(channel.NOTIFY, [channel.CHANNEL, json.dumps({"echo": token})])
        finally:
            close_connections()
        while not self._stopping.is_set():
            if not session.hears(token, SILENCE, self._wakeup[0]):
                if self._stopping.is_set():
                    return
                raise Deaf
            self._set_hears(value=True)
            session.read(ECHO_EVERY, self._wakeup[0])
            token = secrets.token_hex(8)
            session.send_echo(token)

    def _set_hears(self, *, value: bool) -> None:
        if value and not self._timer.hears and _log_this.clear("lost"):
            logger.warning("listening to PostgreSQL again")
        if self._timer.hears is not value:
            self._timer.set_hears(value=value)

    def _tell_deaf(self) -> None:
        if _log_this("deaf"):
            logger.warning(
                "notifications of PostgreSQL do not arrive here, as behind a pooler in transaction mode: workers poll "
                "every %g s. docs/guides/operating.md says how they can listen",
                conf.POLL_INTERVAL,
            )

    def _on_message(self, message: dict[str, Any]) -> None:
        for queue in (message.get("due"), message.get("deadline")):
            if isinstance(queue, str):
                self._timer.meet(queue)
        if isinstance(queue := message.get("due"), str):
            wakeups.notify(queue)
        self._timer.look_within(channel.LOOK_AGAIN)


class _Session:
    """The listening session. The driver's connection is read directly: its own calls wait for answers."""

    def __init__(self, raw: Any, on_message: Any) -> None:
        self._raw = raw
        self._on_message = on_message
        self._echoes: set[str] = set()
        raw.add_notify_handler(lambda notify: self._receive(notify.payload))
        raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel.CHANNEL)))

    def unlisten(self) -> None:
        """Listen no longer: behind a pooler the session goes on without us."""
        with suppress(DriverError):
            self._raw.execute("UNLISTEN *")

    def send_echo(self, token: str) -> None:
        """Send a message that only this session acts on."""
        payload = json.dumps({"echo": token})
        query = sql.SQL("SELECT pg_notify({}, {})").format(channel.CHANNEL, payload).as_bytes(self._raw)
        self._raw.pgconn.send_query(query)
        self._raw.pgconn.flush()

    def hears(self, token: str, seconds: float, wakeup: int) -> bool:
        """Return True once the echo has arrived, False after `seconds`, or if `wakeup` can be read."""
        until = time.monotonic() + seconds
        while token not in self._echoes:
            if (left := until - time.monotonic()) <= 0 or self._read_once(left, wakeup):
                return False
        self._echoes.clear()
        return True

    def read(self, seconds: float, wakeup: int) -> None:
        """Act on messages for so long, or until `wakeup` can be read."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._read_once(left, wakeup):
            continue

    def _read_once(self, seconds: float, wakeup: int) -> bool:
        """Wait for data and act on it. Return True if `wakeup` can be read."""
        pgconn = self._raw.pgconn
        readable, _, _ = select.select([pgconn.socket, wakeup], [], [], seconds)
        if pgconn.socket in readable:
            pgconn.consume_input()
            while (notify := pgconn.notifies()) is not None:
                pgconn.notify_handler(notify)
            while not pgconn.is_busy() and pgconn.get_result() is not None:
                continue
        return wakeup in readable

    def _receive(self, payload: str) -> None:
        try:
            message = json.loads(payload)
            if "echo" in message:
                self._echoes.add(str(message["echo"]))
            else:
                self._on_message(message)
        except Exception as error:  # noqa: BLE001 - anyone may notify anything here: deep JSON is a RecursionError
            if _log_this("shape"):
                text = "a notification of another shape is ignored: %s: %s"
                logger.warning(text, type(error).__name__, ascii(str(error)[:200]))


def _own_connection() -> BaseDatabaseWrapper:
    """Return a connection to durable's database outside of Django's connections, and outside of its pool."""
    base = connections[conf.DATABASE]
    given = {name: value for name, value in base.settings_dict["OPTIONS"].items() if name != "pool"}
    options = {"connect_timeout": CONNECT_TIMEOUT, **given, "application_name": channel.LISTENER}
    return type(base)({**base.settings_dict, "OPTIONS": options}, alias=conf.DATABASE)
