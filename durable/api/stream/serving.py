"""Open streams under ASGI: one thread and one database connection of the process read for all of them.

A stream ends when its run has, after `LONGEST` at the latest, and when its reader is gone. A reader who is cut off comes
again with the id of the last event that he has, and goes on there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import DatabaseError, connections

from durable.api.stream.events import HEARTBEAT, Teller, written
from durable.api.stream.following import Follower, News
from durable.core.errors import RunNotFoundError

logger = logging.getLogger("durable.api")

__all__ = ["LONGEST", "MOST", "events", "has_room"]

MOST: Final = 200  # streams of one process
LONGEST: Final = 300.0  # seconds
BEAT: Final = 15.0  # seconds between signs of life
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks at a run that does not change
_RETRY: Final = b"retry: 1000\n\n"  # milliseconds before a reader who was cut off comes again

T = TypeVar("T")


class _Reader:
    """The thread that looks for all streams. Its connection is closed when nobody is left to look for."""

    def __init__(self) -> None:
        self.streams = 0
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """One stream more."""
        with self._lock:
            self.streams += 1
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="durable-streams")

    async def read(self, look: Callable[[], T]) -> T:
        """What `look` finds, in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _kept, look)

    def close(self) -> None:
        """One stream less."""
        with self._lock:
            self.streams -= 1
            if not self.streams and self._executor is not None:
                self._executor.submit(connections.close_all)
                self._executor.shutdown(wait=False)
                self._executor = None


_reader = _Reader()


def has_room() -> bool:
    """Whether another stream may be opened."""
    return _reader.streams < MOST


async def events(follower: Follower, teller: Teller, first: News) -> AsyncIterator[bytes]:
    """The stream's bytes; `first` is what the follower has found already."""
    _reader.open()
    try:
        yield _RETRY + b"".join(written(event) for event in teller.events(first))
        if first.has_ended:
            return
        async for each in _told(follower, teller):
            yield each
    except RunNotFoundError:
        return  # pruned, or taken out of the user's sight
    except DatabaseError as error:
        logger.warning("a stream of events was cut off, and its reader will come again: %s", error)
    finally:
        _reader.close()


async def _told(follower: Follower, teller: Teller) -> AsyncIterator[bytes]:
    begun = spoken = time.monotonic()
    pause = _FIRST_PAUSE
    while time.monotonic() - begun < LONGEST:
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
