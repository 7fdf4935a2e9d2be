"""Long polls: a request waits a bounded time for a result, and only a few requests of a process wait at once.

A waiting request occupies a thread of the server. So that waiting clients cannot occupy all of them, a process has a
few slots for waiting, and a user may take a share of those. A request without a slot is answered at once, as after a
timeout, and the client asks again. No database connection is held between two looks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar
from weakref import WeakSet

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from rest_framework.request import Request

from durable.conf import conf
from durable.listings.access import owner_of

MAX_WAIT: Final = 30  # seconds
MAX_WAITING: Final = 8  # waiting slots of a process, unless the settings say otherwise
_SHARE: Final = 4  # the fraction of threads that may wait, and of slots that one user may have
_FEWEST_OF_ONE: Final = 2  # slots that a user may always have
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two queries
_LET_GO_FROM = 0.2  # seconds of pause after which the connection is released

T = TypeVar("T")


def wait_for(request: Request, look: Callable[[], T | None], seconds: float) -> T | None:
    """Call `look` at growing intervals until it returns something; return None when the time is over."""
    found = look()
    if found is not None or seconds <= 0:
        return found
    with _seats.taken(request) as is_seated:
        deadline = time.monotonic() + (seconds if is_seated else 0)
        pause = _FIRST_PAUSE
        while found is None and (left := deadline - time.monotonic()) > 0:
            pause = min(pause * 1.5, _LONGEST_PAUSE, left)
            if pause >= _LET_GO_FROM:
                _let_go()
            time.sleep(pause)
            found = look()
    return found


class _Seats:
    """The waiting requests of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        #: the threads that have served a long poll: the server has at least these
        self._threads: WeakSet[threading.Thread] = WeakSet()

    @contextmanager
    def taken(self, request: Request) -> Iterator[bool]:
        """Yield whether the request got a slot; the slot is released after the block."""
        owner = owner_of(request)
        is_seated = self._take(request, owner)
        try:
            yield is_seated
        finally:
            if is_seated:
                self._give_back(owner)

    def _take(self, request: Request, owner: str) -> bool:
        with self._lock:
            self._threads.add(threading.current_thread())
            seats = self._number(request)
            of_one = max(_FEWEST_OF_ONE, seats // _SHARE)
            is_free = self._waiting.total() < seats and self._waiting[owner] < of_one
            if is_free:
                self._waiting[owner] += 1
            return is_free

    def _give_back(self, owner: str) -> None:
        with self._lock:
            self._waiting[owner] -= 1
            self._waiting += Counter()  # drop users without waiting requests

    def _number(self, request: Request) -> int:
        """Return how many requests may wait at once."""
        if conf.API_MAX_WAITING is not None:
            return conf.API_MAX_WAITING
        if isinstance(request._request, ASGIRequest):  # each request has its own thread
            return MAX_WAITING
        if not request.META.get("wsgi.multithread"):  # a request that waits here would block the whole process
            return 0
        return min(MAX_WAITING, max(1, sum(each.is_alive() for each in self._threads) // _SHARE))


_seats = _Seats()


def _let_go() -> None:
    connection = connections[conf.DATABASE]
    if not connection.in_atomic_block:  # a test's transaction must stay open
        connection.close()
