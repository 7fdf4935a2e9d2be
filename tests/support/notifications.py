"""Rings that are sent and not waited for, as tests look at them."""

from __future__ import annotations

from redis.exceptions import RedisError

from durable.notifier.pipelining import PipelinedSender

__all__ = ["wait_for_answers"]


def wait_for_answers(sender: PipelinedSender) -> None:
    """Read what Redis still owes: what it is asked on another connection meanwhile could come before what was sent."""
    free = [sender._free.pop() for _ in range(len(sender._free))]
    for connection, is_owed in free:
        try:
            if is_owed:
                connection.read_response()
        except RedisError:  # as the next command would notice
            sender._close(connection)
        else:
            sender._free.append((connection, False))
