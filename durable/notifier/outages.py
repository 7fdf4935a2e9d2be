"""Whether a Redis is away, as this process has found out.

Owns since when, and the one line in the log when that begins and the one when it ends. While a Redis is away, workers
of `durable_worker` poll the database (`durable.worker.timer`, `durable.worker.rq_serve`). Must not decide what follows.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from durable.notifier import redis_clients

logger = logging.getLogger("durable.bell")

# Seconds without a further try after Redis made a caller wait.
QUIET: Final = 5.0
# Seconds for which workers poll after Redis is back: other processes may not have tried again yet.
AFTERWARDS: Final = QUIET + 1.0

_AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)

_lock = threading.Lock()
_since: dict[str, float] = {}  # by a queue of that Redis, monotonic
_poll_until = 0.0


def is_away(error: BaseException) -> bool:
    """Return True if it is an error of a Redis that is away. Others say that it refuses something."""
    return isinstance(error, _AWAY) and not isinstance(error, AuthenticationError)


def began(queue: str, error: BaseException) -> None:
    """Note that the Redis of the queue does not answer. Log it if that is news."""
    place = redis_clients.first_queue_beside(queue)
    with _lock:
        if place in _since:
            return
        _since[place] = time.monotonic()
    text = 'Redis is away (queue "%s"), durable_worker polls the database until it is back: %s: %s'
    logger.warning(text, place, type(error).__name__, error)


def ended(queue: str) -> None:
    """Note that the Redis of the queue answers. Log it if that is news."""
    global _poll_until
    if not _since:  # as it almost always is
        return
    place = redis_clients.first_queue_beside(queue)
    with _lock:
        since = _since.pop(place, None)
        if since is not None:
            _poll_until = time.monotonic() + AFTERWARDS
    if since is not None:
        logger.warning('Redis answers again after %.0f s (queue "%s")', time.monotonic() - since, place)


def is_found_away(queue: str) -> bool:
    """Ask the Redis of the queue for a sign; return True if it gives none."""
    try:
        redis_clients.client(queue).ping()
    except Exception as error:  # noqa: BLE001 - a queue with wrong settings, which a check reports
        return is_away(error)
    return False


def is_any_away() -> bool:
    """Return True if some Redis does not answer."""
    return bool(_since)


def must_poll() -> bool:
    """Return True if notifications of other processes may have been lost: a Redis is away, or was a moment ago."""
    return bool(_since) or time.monotonic() < _poll_until
