"""A worker that dies by SIGKILL right after a statement about limits has taken effect, once in a test.

`FAULTS_DIE_AFTER` in the environment of the worker names the statement.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from redis import Redis

from durable.store.postgres import PostgresStore

DEATHS = "faults:deaths"  # in Redis: how many times a worker was to die
DIED_AT = "faults:died-at"  # in Redis: when it died
#: The statements, and whether their answer is the one to die of.
_POINTS: dict[str, Callable[[Any], bool]] = {
    "reserve": lambda answer: not answer.begins,  # the attempt has its moment, and the run is not parked yet
    "acquire": lambda answer: answer.is_granted,  # the run has its slot, and the function has not begun
    "close_rate": lambda _answer: True,  # the limit is closed, and the failed attempt is not recorded
}


def arm(point: str) -> None:
    """Let this process die after the statement, if no other process has died of it."""
    statement, is_it = getattr(PostgresStore, point), _POINTS[point]

    def dying(self: PostgresStore, *args: Any, **kwargs: Any) -> Any:
        answer = statement(self, *args, **kwargs)
        if is_it(answer):
            with Redis.from_url(settings.REDIS_URL, socket_timeout=180) as client:
                if client.incr(DEATHS) == 1:
                    client.set(DIED_AT, time.time())
                    os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(PostgresStore, point, dying)
