"""Long polls: a request waits a bounded time for a result, and only a few requests of a process wait at once.

A waiting request occupies a thread of the server. So that waiting clients cannot occupy all of them, a process has a
few seats for waiting, and a user may take a share of those. A request without a seat is answered at once, as after a
timeout, and the client asks again. No database connection is held between two looks.

`Seats` also counts the streams of a process (`durable.api.broadcaster`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar
from weakref import WeakSet

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from rest_framework.request import Request

from durable.conf import conf
from durable.listings.access import owner_of

MAX_WAIT: Final = 30  # seconds
MAX_WAITING: Final = 8  # waiting requests of a process, unless the settings say otherwise
_SHARE: Final = 4  # the fraction of threads that may wait, and of seats that one user may have
_FEWEST_OF_ONE: Final = 2  # seats that a user may always have
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two queries
_LET_GO_FROM = 0.2  # seconds of pause after which the connection is released

T = TypeVar("T")


class Seat:
    """A seat that a user has taken. A second release does nothing."""

    def __init__(self, owner: str, seats: Seats) -> None:
        self.owner = owner
        self.taken_at = time.monotonic()
        self.release = partial(seats.release, self)


class Seats:
    """The seats of one kind in a process: requests that wait, or open streams."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may release a seat, in any thread and at any time
        self._taken: set[Seat] = set()

    def sit(self, seat: Seat, most: int, most_of_one: int) -> bool:
        """Take the seat; return False if the process has `most` taken already, or the user `most_of_one`."""
        with self._lock:
            of_one = sum(each.owner == seat.owner for each in self._taken)
            if len(self._taken) >= most or of_one >= most_of_one:
                return False
            self._taken.add(seat)
            return True

    def release(self, seat: Seat) -> None:
        with self._lock:
            self._taken.discard(seat)


_seats = Seats()
#: The threads that have served a long poll: the server has at least these.
_threads: WeakSet[threading.Thread] = WeakSet()
_lock = threading.Lock()


def wait_for(request: Request, look: Callable[[], T | None], seconds: float) -> T | None:
    """Call `look` at growing intervals until it returns something; return None when the time is over."""
    found = look()
    if found is not None or seconds <= 0:
        return found
    seat, number = Seat(owner_of(request), _seats), _number(request)
    if not _seats.sit(seat, number, max(_FEWEST_OF_ONE, number // _SHARE)):
        return None
    try:
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while found is None and (left := deadline - time.monotonic()) > 0:
            pause = min(pause * 1.5, _LONGEST_PAUSE, left)
            if pause >= _LET_GO_FROM:
                _let_go()
            time.sleep(pause)
            found = look()
    finally:
        seat.release()
    return found


def _number(request: Request) -> int:
    """Return how many requests may wait at once in this process."""
    with _lock:
        _threads.add(threading.current_thread())
        threads = sum(each.is_alive() for each in _threads)
    if conf.API_MAX_WAITING is not None:
        return conf.API_MAX_WAITING
    if isinstance(request._request, ASGIRequest):  # each request has its own thread
        return MAX_WAITING
    if not request.META.get("wsgi.multithread"):  # a request that waits here would block the whole process
        return 0
    return min(MAX_WAITING, max(1, threads // _SHARE))


def _let_go() -> None:
    connection = connections[conf.DATABASE]
    if not connection.in_atomic_block:  # a test's transaction must stay open
        connection.close()
