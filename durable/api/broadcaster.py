"""Changes as events, and open streams of them under ASGI: in a process, one thread and one connection read for all
streams.

A stream ends when its run has ended, after `LONGEST` at the latest, when its client has gone, and when the user may no
longer see the run. A client that is cut off reconnects with the id of the last event, and continues there. A process
serves `MOST` streams, `MOST_OF_ONE` of them for one user; a stream takes its seat before anything is read for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from django.db import DatabaseError, connections
from rest_framework.request import Request

from durable.api.base import is_still_permitted
from durable.api.changes import Follower, News
from durable.api.long_poll import Seat, Seats
from durable.api.requests import as_json
from durable.core.errors import RunNotFoundError
from durable.core.records import EntryKind
from durable.inspection.entry_detail import note_links
from durable.listings.access import may, seen_of
from durable.listings.history import Entry, seen_history
from durable.listings.problems import ProblemError
from durable.listings.runs import Run, seen_runs
from durable.listings.shapes import data_of

MOST: Final = 200  # streams of one process
MOST_OF_ONE: Final = 20  # of one user in one process
LONGEST: Final = 300.0  # seconds
BEAT: Final = 15.0  # seconds between two heartbeats
BEGINS_WITHIN: Final = 30.0  # seconds from the admission of a stream until its first read
RIGHTS: Final = 15.0  # seconds after which a user's permissions are checked again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two queries of a run that does not change
_RETRY: Final = b"retry: 1000\n\n"  # milliseconds before a client that was cut off reconnects
T = TypeVar("T")
HEARTBEAT = b": nothing new\n\n"


class NoLongerPermittedError(Exception):
    """The user's account or permission was removed after the stream was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event. A reader sends `id` to continue after the event; "" if that is not possible."""

    event: str
    data: Any
    id: str = ""


class EventBuilder:
    """Converts one run's changes to events for one user: `run`, `entry`, `removed`, `reset`, `end`."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._may_see_payloads = may(request, "view_payload")

    def check_rights(self) -> None:
        """Check again what the user may see. Raises NoLongerPermittedError if the user may no longer see runs."""
        if not is_still_permitted(self.request):
            raise NoLongerPermittedError
        self._may_see_payloads = may(self.request, "view_payload")

    def events(self, news: News) -> Iterator[StreamEvent]:
        """Yield the events in the order in which the reader has to apply them. The last one has the id."""
        found = list(self._events(news))
        token = "" if news.token is None else str(news.token)
        yield from found[:-1]
        if found:
            yield StreamEvent(event=found[-1].event, data=found[-1].data, id=token)

    def _events(self, news: News) -> Iterator[StreamEvent]:
        run = news.run
        if news.is_reset:
            yield StreamEvent(event="reset", data={})
        if news.removed:
            yield StreamEvent(event="removed", data={"locations": list(news.removed)})
        seen = replace(seen_of(self.request), payloads=self._may_see_payloads)
        history = seen_history(seen, run)
        note_links(run, news.entries)
        for entry in news.entries:
            yield StreamEvent(event="entry", data=data_of(Entry, entry, history))
        if news.has_changed or any(each.kind == EntryKind.TAG for each in news.entries):  # a run shows its tags
            yield StreamEvent(event="run", data=data_of(Run, run, seen_runs(seen, [run], is_brief=True)))
        if news.has_ended:
            yield StreamEvent(event="end", data={"id": run.id, "state": run.state})


def encode_event(event: StreamEvent) -> bytes:
    """Return the event in the form that is sent; the JSON is ASCII without line breaks."""
    lines = [f"event: {event.event}", f"data: {as_json(event.data)}"]
    if event.id:
        lines.append(f"id: {event.id}")
    return ("\n".join(lines) + "\n\n").encode("ascii")


logger = logging.getLogger("durable.api")


class StreamSlot(Seat):
    """The seat of one stream in this process, from its admission on."""

    has_begun = False

    def released_after(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the stream's bytes; the seat is released at their end, even if they were never read."""
        weakref.finalize(chunks, self.release)
        return chunks


class Slots(Seats):
    """The seats of streams, and the thread that reads for all of them. Its connection is closed when there is none.

    `limits` returns how many streams the process serves, and how many of them one user may have.
    """

    _taken: set[StreamSlot]  # type: ignore[assignment]  # streams alone

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        super().__init__()
        self._limits = limits
        self._executor: ThreadPoolExecutor | None = None

    @property
    def streams(self) -> int:
        return len(self._taken)

    def take(self, owner: str) -> StreamSlot:
        """Return a seat for another stream of this user. Raises ProblemError if there is none."""
        slot = StreamSlot(owner, self)
        if not self.open(slot):
            most, of_one = self._limits()
            detail = (
                f"This process serves {most} streams already, or {of_one} of yours; try again in a minute, or poll."
            )
            raise ProblemError("too-many-streams", 503, detail, headers={"Retry-After": "60"})
        return slot

    def open(self, slot: StreamSlot) -> bool:
        """Take the seat; return False if all are taken. Those whose clients left before the first read are free."""
        with self._lock:
            latest = time.monotonic() - BEGINS_WITHIN
            for each in [each for each in self._taken if not each.has_begun and each.taken_at <= latest]:
                each.release()  # nothing else notices that
            if not self.sit(slot, *self._limits()):
                return False
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="durable-streams")
            return True

    def begin(self, slot: StreamSlot) -> bool:
        """Mark the stream as being read. Return False if its seat was lost and no other is free."""
        with self._lock:
            slot.has_begun = True
            return slot in self._taken or self.open(slot)

    async def read(self, look: Callable[[], T]) -> T:
        """Return the result of `look`, called in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _read_once, look)

    def release(self, seat: Seat) -> None:
        with self._lock:
            super().release(seat)
            if not self._taken and self._executor is not None:
                self._executor.submit(connections.close_all)
                self._executor.shutdown(wait=False)
                self._executor = None


streams = Slots(lambda: (MOST, MOST_OF_ONE))


async def events(slot: StreamSlot, follower: Follower, builder: EventBuilder, first: News) -> AsyncIterator[bytes]:
    """Yield the stream's bytes, beginning with `first`, the follower's first changes."""
    if not streams.begin(slot):
        return
    try:
        begin, has_ended = await streams.read(partial(_encoded, builder, first)), first.has_ended
        del first  # its entries must not stay in memory for as long as the stream is open
        yield _RETRY + begin
        if has_ended:
            return
        async for each in _later_events(follower, builder):
            yield each
    except RunNotFoundError:
        return  # the run was pruned, or the user may no longer see it
    except NoLongerPermittedError:
        return
    except DatabaseError as error:
        logger.warning("a stream of events was cut off; its reader will reconnect: %s", error)
    finally:
        slot.release()


async def _later_events(follower: Follower, builder: EventBuilder) -> AsyncIterator[bytes]:
    begun = spoken = asked = time.monotonic()
    pause = _FIRST_PAUSE
    while time.monotonic() - begun < LONGEST:
        if time.monotonic() - asked >= RIGHTS:
            asked = time.monotonic()
            await streams.read(builder.check_rights)
        chunk, has_more, has_ended = await streams.read(lambda: _look(follower, builder))
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


def _look(follower: Follower, builder: EventBuilder) -> tuple[bytes, bool, bool]:
    news = follower.look()
    return _encoded(builder, news), news.has_more, news.has_ended


def _encoded(builder: EventBuilder, news: News) -> bytes:
    return b"".join(encode_event(event) for event in builder.events(news))


def _read_once(look: Callable[[], T]) -> T:
    """Call `look` on the thread's connections, which stay open between looks.

    A connection that has failed is closed.
    """
    try:
        return look()
    except DatabaseError:
        connections.close_all()
        raise
