"""Open streams under ASGI: one thread and one database connection of the process read for all of them.

A stream ends when its run has, after `LONGEST` at the latest, when its reader is gone, and when the reader may no longer see
the run. A reader who is cut off comes again with the id of the last event, and goes on there. A process has places for `MOST`
streams, `MOST_OF_ONE` of them for one user; a place is taken before anything is read for a stream.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import DatabaseError, connections
from django.http import StreamingHttpResponse

from durable.api.stream.events import HEARTBEAT, NoLongerPermittedError, Teller, written
from durable.api.stream.following import Follower, News
from durable.core.errors import RunNotFoundError

logger = logging.getLogger("durable.api")

__all__ = ["LONGEST", "MOST", "MOST_OF_ONE", "Place", "events", "place_for"]

MOST: Final = 200  # streams of one process
MOST_OF_ONE: Final = 20  # of one user in one process
LONGEST: Final = 300.0  # seconds
BEAT: Final = 15.0  # seconds between signs of life
RIGHTS: Final = 15.0  # seconds after which a reader's rights are asked for again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks at a run that does not change
_RETRY: Final = b"retry: 1000\n\n"  # milliseconds before a reader who was cut off comes again

T = TypeVar("T")


class _Reader:
    """The thread that looks for all streams. Its connection is closed when nobody is left to look for."""

    def __init__(self) -> None:
        self.streams = 0
        self.of: Counter[str] = Counter()
        self._lock = (
            threading.RLock()
        )  # a place may be given back by the garbage collector, in any thread and at any moment
        self._executor: ThreadPoolExecutor | None = None

    def open(self, owner: str) -> bool:
        """One stream more of this user; False if there is no room for it."""
        with self._lock:
            if self.streams >= MOST or self.of[owner] >= MOST_OF_ONE:
                return False
            self.streams += 1
            self.of[owner] += 1
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="durable-streams")
            return True

    async def read(self, look: Callable[[], T]) -> T:
        """What `look` finds, in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _kept, look)

    def close(self, owner: str) -> None:
        """One stream less."""
        with self._lock:
            self.streams -= 1
            self.of[owner] -= 1
            if not self.of[owner]:
                del self.of[owner]
            if not self.streams and self._executor is not None:
                self._executor.submit(connections.close_all)
                self._executor.shutdown(wait=False)
                self._executor = None


_reader = _Reader()


class Place:
    """The place of one stream, which is given back once, by whoever is the first to see that the stream has ended."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.RLock()
        self._is_taken = True

    def give_back(self) -> None:
        """Let another stream have it."""
        with self._lock:
            was_taken, self._is_taken = self._is_taken, False
        if was_taken:
            _reader.close(self._owner)

    def given_back_with(self, response: StreamingHttpResponse) -> StreamingHttpResponse:
        """The response, with which the place goes also where nobody has begun to read it, or its server has dropped it."""
        weakref.finalize(response, self.give_back)
        return response


def place_for(owner: str) -> Place | None:
    """A place for another stream of this user; None if there is none."""
    return Place(owner) if _reader.open(owner) else None


async def events(place: Place, follower: Follower, teller: Teller, first: News) -> AsyncIterator[bytes]:
    """The stream's bytes; `first` is what the follower has found already."""
    try:
        yield _RETRY + b"".join(written(event) for event in teller.events(first))
        if first.has_ended:
            return
        async for each in _told(follower, teller):
            yield each
    except RunNotFoundError:
        return  # pruned, or taken out of the user's sight
    except NoLongerPermittedError:
        return
    except DatabaseError as error:
        logger.warning("a stream of events was cut off, and its reader will come again: %s", error)
    finally:
        place.give_back()


async def _told(follower: Follower, teller: Teller) -> AsyncIterator[bytes]:
    begun = spoken = asked = time.monotonic()
    pause = _FIRST_PAUSE
    while time.monotonic() - begun < LONGEST:
        if time.monotonic() - asked >= RIGHTS:
            asked = time.monotonic()
            await _reader.read(teller.check_rights)
        chunk, has_more, has_ended = await _reader.read(lambda: _look(follower, teller))
        if chunk:
            spoken, pause = time.monotonic(), _FIRST_PAUSE
            yield chunk
        if has_ended:
            return
        if has_more:
            continue
        if time.monotonic() - spoken >= BEAT:
            spoken = time.monotonic()
            yield HEARTBEAT
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _look(follower: Follower, teller: Teller) -> tuple[bytes, bool, bool]:
    news = follower.look()
    chunk = b"".join(written(event) for event in teller.events(news))
    return chunk, news.has_more, news.has_ended


def _kept(look: Callable[[], T]) -> T:
    """`look` on the thread's connections, which stay open between looks. One that has failed is given up."""
    try:
        return look()
    except DatabaseError:
        connections.close_all()
        raise
