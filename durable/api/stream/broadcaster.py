"""Open streams under ASGI: one thread and one database connection of the process read for all of them.

A stream ends when its run has ended, after `LONGEST` at the latest, when its client has gone, and when the user may no
longer see the run. A client that is cut off reconnects with the id of the last event, and continues there. A process
has places for `MOST` streams, `MOST_OF_ONE` of them for one user; a stream takes its place before anything is read for
it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import DatabaseError, connections

from durable.api.stream.changes import Follower, News
from durable.api.stream.events import HEARTBEAT, NoLongerPermittedError, Teller, written
from durable.core.errors import RunNotFoundError

logger = logging.getLogger("durable.api")

__all__ = ["LONGEST", "MOST", "MOST_OF_ONE", "Place", "events", "place_for"]

MOST: Final = 200  # streams of one process
MOST_OF_ONE: Final = 20  # of one user in one process
LONGEST: Final = 300.0  # seconds
BEAT: Final = 15.0  # seconds between two heartbeats
BEGINS_WITHIN: Final = 30.0  # seconds from the admission of a stream until its first read
RIGHTS: Final = 15.0  # seconds after which a user's permissions are checked again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks at a run that does not change
_RETRY: Final = b"retry: 1000\n\n"  # milliseconds before a client that was cut off reconnects

T = TypeVar("T")


class Place:
    """The place of one stream in this process, from its admission on."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.taken_at = time.monotonic()
        self.has_begun = False

    def given_back_with(self, told: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the stream's bytes; the place is released at their end, even if they were never read."""
        weakref.finalize(told, self.give_back)
        return told

    def give_back(self) -> None:
        """Release the place for another stream; a second call does nothing."""
        _reader.close(self)


class _Reader:
    """The places, and the thread that reads for all streams. Its connection is closed when there is no stream."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may release a place, in any thread and at any time
        self._places: set[Place] = set()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def streams(self) -> int:
        """The number of taken places."""
        return len(self._places)

    def open(self, place: Place) -> bool:
        """Take the place; return False if all places are taken."""
        with self._lock:
            self._forget_lost()
            of_one = sum(each.owner == place.owner for each in self._places)
            if len(self._places) >= MOST or of_one >= MOST_OF_ONE:
                return False
            self._places.add(place)
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="durable-streams")
            return True

    def begin(self, place: Place) -> bool:
        """Mark the stream as being read; return False if its place was lost and there is no other."""
        with self._lock:
            place.has_begun = True
            return place in self._places or self.open(place)

    async def read(self, look: Callable[[], T]) -> T:
        """Return the result of `look`, called in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _kept, look)

    def close(self, place: Place) -> None:
        """Release the place, if it is taken."""
        with self._lock:
            if place not in self._places:
                return
            self._places.remove(place)
            if not self._places and self._executor is not None:
                self._executor.submit(connections.close_all)
                self._executor.shutdown(wait=False)
                self._executor = None

    def _forget_lost(self) -> None:
        """Release the places of streams whose clients left before the first read: no other event reports that."""
        latest = time.monotonic() - BEGINS_WITHIN
        for each in [each for each in self._places if not each.has_begun and each.taken_at <= latest]:
            self.close(each)


_reader = _Reader()


def place_for(owner: str) -> Place | None:
    """Return a place for another stream of this user; None if there is none."""
    place = Place(owner)
    return place if _reader.open(place) else None


async def events(place: Place, follower: Follower, teller: Teller, first: News) -> AsyncIterator[bytes]:
    """Yield the stream's bytes; `first` is what the follower has found already."""
    if not _reader.begin(place):
        return
    try:
        begin, has_ended = _RETRY + b"".join(written(event) for event in teller.events(first)), first.has_ended
        del first  # its entries must not stay in memory for as long as the stream is open
        yield begin
        if has_ended:
            return
        async for each in _told(follower, teller):
            yield each
    except RunNotFoundError:
        return  # the run was pruned, or the user may no longer see it
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
    """Call `look` on the thread's connections, which stay open between looks.

    A connection that has failed is closed.
    """
    try:
        return look()
    except DatabaseError:
        connections.close_all()
        raise
