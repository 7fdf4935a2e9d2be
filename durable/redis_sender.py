"""Commands to Redis whose answers nobody waits for.

Owns the connection that a process sends them on. Each answer is read when the next command is sent, and that is when a
command that failed is noticed: whoever sends must be able to do without the last one. Must not decide what is sent.
"""

from __future__ import annotations

import threading
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["Sender"]


class Sender:
    """Sends on a connection of its own, out of the client's pool. Any thread may use it; a child process needs another."""

    __slots__ = ("_connection", "_is_owed", "_lock", "_pool")

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._lock = threading.Lock()
        self._connection: Any = None
        self._is_owed = False  # the answer to the last command

    def open(self) -> None:
        """Send from now on. For whoever has just been answered: what is wrong with Redis is told by a command that waits."""
        with self._lock:
            if self._connection is None:
                self._connection = self._pool.get_connection()

    def send(self, *command: Any) -> bool:
        """Send a command; whether it was sent.

        If not, it has to be sent in the usual way: `open` was not called yet, another thread is sending, Redis has closed
        the connection, or the command before this one has failed. Raises RedisTimeoutError where its answer does not come.
        """
        if self._connection is None or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._connection is not None and self._send(command)
        except BaseException as error:
            self._close()
            if isinstance(error, RedisError | OSError) and not isinstance(error, RedisTimeoutError):
                return False
            raise
        finally:
            self._lock.release()

    def _send(self, command: tuple[Any, ...]) -> bool:
        if self._is_owed:
            self._connection.read_response()
            self._is_owed = False
        if self._connection.can_read():  # the end of it, or an answer to what a signal has interrupted
            self._close()
            return False
        self._connection.send_command(*command)
        self._is_owed = True
        return True

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._is_owed = False
        connection.disconnect()
        self._pool.release(connection)
