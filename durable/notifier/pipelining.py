"""Commands to Redis whose answers nobody waits for.

Owns the connections that a process sends them on, as many as threads send at once. Each answer is read when the next
command is sent, and that is when a command that failed is noticed: whoever sends must be able to do without the last one.
Must not decide what is sent.
"""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["PipelinedSender"]


class PipelinedSender:
    """Sends on connections of its own, out of the client's pool. Any thread may use it; a child process needs another.

    A connection is taken from those that are free, and put back when its command is sent, or closed. So nothing is left
    locked, and nobody reads another's answer, wherever a signal's handler raises: the connection is lost then, at worst.
    """

    __slots__ = ("_free", "_pool")

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._free: list[tuple[Any, bool]] = []  # and whether each is owed the answer to its last command

    def open(self) -> None:
        """Send from now on. For whoever has just been answered: what is wrong with Redis is told by a command that waits."""
        if not self._free:
            self._free.append((self._pool.get_connection(), False))

    def send(self, *command: Any) -> bool:
        """Send a command; whether it was sent.

        If not, it has to be sent in the usual way: `open` was not called yet, others are sending, Redis has closed the
        connection, or the command before this one has failed. Raises RedisTimeoutError where its answer does not come.
        """
        try:
            connection, is_owed = self._free.pop()
        except IndexError:
            return False
        try:
            is_sent = self._send(command, connection, is_owed=is_owed)
        except BaseException as error:
            self._close(connection)
            if isinstance(error, RedisError | OSError) and not isinstance(error, RedisTimeoutError):
                return False
            raise
        if is_sent:
            self._free.append((connection, True))
        else:
            self._close(connection)
        return is_sent

    def _send(self, command: tuple[Any, ...], connection: Any, *, is_owed: bool) -> bool:
        if is_owed:
            connection.read_response()
        if connection.can_read():  # the end of it
            return False
        connection.send_command(*command)
        return True

    def _close(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)
