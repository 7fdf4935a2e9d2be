"""Reading a step's stream: in code, in async code, and as server-sent events for a page of the project.

A reader gets `Chunk` objects: `chunk` for each that the step emits; `restart` when another attempt begins, so that what
was shown so far is void; and at last `result` with what the step has returned, or `failed`. A reader that begins when
the step has ended gets the last one alone.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.core.handlers.asgi import ASGIRequest
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from durable import runtime
from durable.conf import conf
from durable.core.duration import Duration, parse_duration
from durable.core.errors import RunNotFoundError
from durable.core.places import Place
from durable.core.records import StepChunk
from durable.models import Entry
from durable.notifier.chunks import Stream
from durable.operations.common import run_sync
from durable.streams.hub import START, Mailbox, Outcome, Part, hub_of, outcome_of

#: The id of the last event, behind which nothing follows.
END: Final = "end"
#: Seconds without a chunk after which a connection gets a comment, so that no proxy takes it for a dead one.
BEAT: Final = 15.0
#: Seconds within which the thread has looked for a new reader, unless it is in trouble.
_FIRST_LOOK: Final = 0.3
_MOST: Final = 2**64 - 1  # in a position of Redis
_RETRY: Final = b"retry: 1000\n\n"  # milliseconds before a client that was cut off reconnects
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Encoding": "identity"}
EVENT_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event of a stream.

    - `event`: "chunk"; "restart": another attempt begins, drop what came before; "result" and "failed": the step has
      ended, and nothing follows.
    - `value`: what the step has emitted, or has returned; for "failed" the error as text.
    - `id`: give it as `after` to go on behind this event.
    - `attempt`: the number of the attempt, from 1 on; 0 for the last event.
    """

    event: Literal["chunk", "restart", "result", "failed"]
    value: Any = None
    id: str = ""
    attempt: int = 0

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.event in ("result", "failed")

    def encoded(self) -> bytes:
        """Return the chunk as a server-sent event, whose data is JSON: `value` and `attempt`."""
        try:
            data = json.dumps({"value": self.value, "attempt": self.attempt}, cls=_Encoder, allow_nan=False)
        except (TypeError, ValueError):  # keys that are not text, numbers that JSON does not have
            data = json.dumps({"value": repr(self.value), "attempt": self.attempt})
        return f"event: {self.event}\ndata: {data}\nid: {self.id}\n\n".encode("ascii")


class _Encoder(DjangoJSONEncoder):
    """What the codec records and JSON does not have becomes text."""

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return str(o)


class _Reader:
    """What one reader has been given: the position in Redis, and the newest attempt with its last chunk."""

    def __init__(self, stream: Stream, after: str | None) -> None:
        self._stream = stream
        self._at = runtime.current()
        self.position, self._attempt, self._number = _parsed(after or "")

    def given(self, item: Part | Outcome) -> Iterator[Chunk]:
        """Yield the chunks for an item of the mailbox."""
        if isinstance(item, Outcome):
            if item.is_gone:
                raise RunNotFoundError(self._stream.run_id)
            yield self._last(item)
            return
        attempt, self.position = (item.fence, item.attempt), item.position
        if attempt < self._attempt or (attempt == self._attempt and item.number <= self._number):
            return  # of a worker that has lost the run, or sent twice
        if attempt > self._attempt > (0, 0):
            self._attempt, self._number = attempt, 0
            yield Chunk(event="restart", id=self._id(), attempt=item.attempt)
        self._attempt, self._number = attempt, item.number
        value = self._at.decode(item.text, Place(self._stream.run_id, "chunk", self._stream.location))
        yield Chunk(event="chunk", value=value, id=self._id(), attempt=item.attempt)

    def _last(self, outcome: Outcome) -> Chunk:
        if outcome.error is not None:
            return Chunk(event="failed", value=str(outcome.error), id=END)
        value = self._at.decode(outcome.output, Place(self._stream.run_id, "output", self._stream.location))
        return Chunk(event="result", value=value, id=END)

    def _id(self) -> str:
        numbers = (*self.position, *self._attempt, self._number)
        return "-".join(str(each) for each in numbers)


def _parsed(after: str) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return what an id says; the beginning for a text that is none."""
    try:
        first, second, fence, attempt, number = numbers = [int(each) for each in after.split("-")]
    except ValueError:
        return START, (0, 0), 0
    if max(numbers) > _MOST:
        return START, (0, 0), 0
    return (first, second), (fence, attempt), number


def _collected(stream: Stream, chunks: list[StepChunk], after: str | None) -> Iterator[Chunk]:
    """Yield what a harness has collected: what was emitted until now, and the outcome if there is one."""
    reader = _Reader(stream, after)
    of_stream = [each for each in chunks if (each.run_id, each.location) == stream and each.text is not None]
    for number, each in enumerate(of_stream, start=1):
        part = Part(position=(number, 0), fence=each.fence, attempt=each.attempt, number=each.number, text=each.text)
        yield from reader.given(part)
    store = runtime.current().store
    run = store.get(stream.run_id)
    entry = next((each for each in store.history(stream.run_id) if each.location == stream.location), None)
    status, output, error = ("", None, None) if entry is None else (entry.status, entry.output, entry.error)
    if (outcome := outcome_of(stream, None if run is None else run.state, status, output, error)) is not None:
        yield from reader.given(outcome)


class _Reading:
    """A reader with its mailbox in a hub, which also finds the run: a reader costs no connection to the database."""

    def __init__(self, stream: Stream, after: str | None, wake: Callable[[], None]) -> None:
        self._stream = stream
        self._wake = wake
        self._reader = _Reader(stream, after)
        self._mailbox = self._opened()

    def _opened(self) -> Mailbox:
        mailbox = Mailbox(self._stream, self._reader.position, self._wake)
        hub_of().open(mailbox)
        return mailbox

    def available(self) -> Iterator[Chunk]:
        """Yield the chunks that have come; the last one may be among them. Raises RunNotFoundError."""
        while (item := self._mailbox.take()) is not None:
            yield from self._reader.given(item)
            if isinstance(item, Outcome):
                return
        if self._mailbox.is_overfull:
            self._mailbox = self._opened()

    def close(self) -> None:
        self._mailbox.close()


def read(run_id: str, location: str, after: str | None = None, timeout: Duration | None = None) -> Iterator[Chunk]:
    """Yield the chunks of the step at `location`, as they come, until the step or the run has ended.

    `after` is the id of a chunk: begin behind it. Raises RunNotFoundError, and TimeoutError when no chunk comes for
    `timeout`.
    """
    stream = Stream(run_id, location)
    if (collected := runtime.current().chunks) is not None:
        yield from _collected(stream, collected, after)
        return
    longest = None if timeout is None else parse_duration(timeout).total_seconds()
    arrived = threading.Event()
    with closing(_Reading(stream, after, arrived.set)) as reading:
        while True:
            if not arrived.wait(longest):
                raise TimeoutError(_nothing_came(stream, longest or 0))
            arrived.clear()
            for chunk in reading.available():
                yield chunk
                if chunk.is_last:
                    return


def _nothing_came(stream: Stream, seconds: float) -> str:
    text = f'no chunk of "{stream.location}" of run {stream.run_id} has come in {seconds:g} s'
    if Entry.objects.using(conf.DATABASE).filter(run=stream.run_id, location=stream.location).exists():
        return text
    return f"{text}, and no step is recorded at this location: run.history() has the locations of those that are"


async def aread(run_id: str, location: str, after: str | None = None) -> AsyncIterator[Chunk]:
    """`read`, from async code."""
    async for chunk in _aread(run_id, location, after):
        if chunk is not None:
            yield chunk


async def _aread(run_id: str, location: str, after: str | None) -> AsyncIterator[Chunk | None]:
    """Yield the chunks, and None when none has come for some seconds."""
    stream = Stream(run_id, location)
    if (collected := runtime.current().chunks) is not None:
        for chunk in await run_sync(lambda: list(_collected(stream, collected, after))):
            yield chunk
        return
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(arrived.set)

    with closing(_Reading(stream, after, wake)) as reading:
        while True:
            try:
                async with asyncio.timeout(BEAT):
                    await arrived.wait()
            except TimeoutError:
                yield None
                continue
            arrived.clear()
            for chunk in reading.available():
                yield chunk
                if chunk.is_last:
                    return


async def events(
    run_id: str, location: str, after: str | None = None, shown: Callable[[Chunk], Chunk] | None = None
) -> AsyncIterator[bytes]:
    """Yield the chunks as server-sent events, and a comment when none has come for 15 s.

    `shown` returns a chunk as its reader may see it.
    """
    yield _RETRY
    try:
        async for chunk in _aread(run_id, location, after):
            if chunk is None:
                yield b": nothing new\n\n"
            else:
                yield (chunk if shown is None else shown(chunk)).encoded()
    except RunNotFoundError as error:
        yield Chunk(event="failed", value=str(error), id=END).encoded()


def read_available(run_id: str, location: str, after: str | None = None) -> list[Chunk]:
    """Return the chunks that there are now, for a server that keeps nothing open. Raises RunNotFoundError."""
    stream = Stream(run_id, location)
    if (collected := runtime.current().chunks) is not None:
        return list(_collected(stream, collected, after))
    arrived = threading.Event()
    with closing(_Reading(stream, after, arrived.set)) as reading:
        arrived.wait(_FIRST_LOOK)
        return list(reading.available())


def encoded(chunks: Iterable[Chunk]) -> bytes:
    """Return the chunks as the body of an answer that ends with them."""
    return _RETRY + b"".join(each.encoded() for each in chunks)


def newest(run_id: str, location: str, after: str | None, most: int) -> list[Chunk]:
    """Return what there is now behind `after`, for a page that shows the newest: of more than `most` chunks the last
    ones, behind a `restart`.
    """
    found = read_available(run_id, location, after)
    left_out, shown = found[:-most], found[-most:]
    return [Chunk(event="restart", id=left_out[-1].id, attempt=shown[0].attempt), *shown] if left_out else shown


def response(request: HttpRequest, run_id: str, location: str) -> HttpResponseBase:
    """Return the answer of a view of the project that streams a step to its user, as server-sent events.

    The view decides who may see it. Under ASGI the connection stays open; under WSGI it ends with what there is, and
    the browser's `EventSource` connects again a second later, behind the last event that it has. Raises
    RunNotFoundError under WSGI.
    """
    after = request.headers.get("Last-Event-ID")
    if after == END:
        return HttpResponse(status=204)  # an EventSource does not connect again then
    if isinstance(request, ASGIRequest):
        stream = events(run_id, location, after)
        return StreamingHttpResponse(stream, content_type=EVENT_STREAM, headers=HEADERS)
    chunks = read_available(run_id, location, after)
    return HttpResponse(encoded(chunks), content_type=EVENT_STREAM, headers=HEADERS)
