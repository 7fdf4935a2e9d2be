"""Send commands to Redis without waiting for their answers.

Owns the connections that a process sends them on: as many as threads send at once. The sender reads each answer when it
sends the next command on that connection, and notices only then that a command failed. So the caller must be able to do
without the last command. Must not decide what is sent.
"""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError


class PipelinedSender:
    """Sends on connections of its own, taken from the client's pool. Any thread may use it; a child process needs
    another.

    A sender takes a free connection, and puts it back when the command is sent, or closes it. So no lock stays taken
    and no thread reads another's answer, even if a signal handler raises anywhere: at worst the connection is lost.
    """

    __slots__ = ("_free", "_pool")

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._free: list[tuple[Any, bool]] = []  # each with True if the answer to its last command is unread

    def open(self) -> None:
        """Allow sending from now on.

        Call it after a command that was answered, so that errors of Redis were reported.
        """
        if not self._free:
            self._free.append((self._pool.get_connection(), False))

    def send(self, *command: Any) -> bool:
        """Send a command and return True if it was sent.

        If not, the caller has to send it in the usual way: `open` was not called yet, other threads are sending, Redis
        has closed the connection, or the previous command has failed. Raises RedisTimeoutError if the previous answer
        does not come.
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
        if connection.can_read():  # only an end of file can be read now
            return False
        connection.send_command(*command)
        return True

    def _close(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)
