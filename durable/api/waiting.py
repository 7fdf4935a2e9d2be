"""Long polls: a request waits a bounded time for something, and few of them do at once.

A waiting request holds a thread of the server's. So that waiting clients cannot take them all, only `MAX_WAITING` wait
in one process; for further ones the time is over at once, as if nothing had happened in it, and they ask again. Between two
looks no database connection is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from django.db import connections

from durable.conf import conf

__all__ = ["MAX_WAIT", "MAX_WAITING", "wait_for"]

MAX_WAIT: Final = 30  # seconds
MAX_WAITING: Final = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks
_LET_GO_FROM = 0.2  # seconds of pause from which on the connection is given back

T = TypeVar("T")
_seats = threading.BoundedSemaphore(MAX_WAITING)


def wait_for(look: Callable[[], T | None], seconds: float) -> T | None:
    """What `look` finds, looking again and again, less and less often; None when the time is over."""
    found = look()
    if found is not None or seconds <= 0:
        return found
    with _seat() as is_free:
        deadline = time.monotonic() + (seconds if is_free else 0)
        pause = _FIRST_PAUSE
        while found is None and (left := deadline - time.monotonic()) > 0:
            pause = min(pause * 1.5, _LONGEST_PAUSE, left)
            if pause >= _LET_GO_FROM:
                _let_go()
            time.sleep(pause)
            found = look()
    return found


@contextmanager
def _seat() -> Iterator[bool]:
    is_free = _seats.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _seats.release()


def _let_go() -> None:
    connection = connections[conf.DATABASE]
    if not connection.in_atomic_block:  # a test's transaction has to live on
        connection.close()
