"""What happens in a run, and what a running step emits (`durable.streams`): server-sent events if the request accepts
them, else a long poll of the same events as JSON.

`durable.api.changes` reads the changes of a run, and `durable.api.broadcaster` keeps connections open.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, connections
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api import broadcaster
from durable.api.base import STREAM, View, is_still_permitted
from durable.api.broadcaster import EventBuilder, Slots, StreamEvent, StreamSlot, encode_event
from durable.api.changes import Follower, News, Token
from durable.api.fields import Number, Query, Text
from durable.api.long_poll import MAX_WAIT, wait_for
from durable.api.requests import EVENT_STREAM, EventStreamRenderer, JSONRenderer
from durable.api.schema import M, ProblemSerializer, described
from durable.core.errors import RunNotFoundError
from durable.inspection.counting import MAX_BYTES
from durable.inspection.payloads import of_stream
from durable.listings.access import is_limited, may, owner_of, visible_run, visible_runs
from durable.listings.problems import CONTENT_TYPE
from durable.models import Run
from durable.streams import reading

_MOST_EVENTS = 1_000  # events in one answer, plus one chunk
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
#: Of a connection that stays open. An answer whose encoding is declared is compressed neither by Django's
#: GZipMiddleware nor by a proxy, which would keep the events until they fill a block.
_OPEN = {**_HEADERS, "Content-Encoding": "identity"}
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="The id of the last event that you have."
)


class StreamQuery(Query):
    after = Text(required=False, max_length=120, help_text="The id of the last event that you have.")
    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


class EventSerializer(serializers.Serializer[Any]):
    """A change in a run's history."""

    event = serializers.ChoiceField(choices=["entry", "removed", "reset", "run", "end"])
    data = serializers.DictField()  # type: ignore[assignment]  # DRF removes fields from the class


@extend_schema_serializer(component_name="News")
class NewsSerializer(serializers.Serializer[Any]):
    """The changes, in the order in which the client has to apply them."""

    events = EventSerializer(many=True)
    last_event_id = serializers.CharField(help_text="Give it as `after` to go on behind these.")
    has_ended = serializers.BooleanField(help_text="Nothing follows.")


class EventsView(View):
    """Events of a run: server-sent ones, or one JSON document of them."""

    about = "history"
    throttle_scope = STREAM
    waits = True
    http_method_names = ("get",)  # a HEAD request would open a stream
    renderer_classes = (JSONRenderer, EventStreamRenderer)


def _streamed(operation_id: str, document: type[serializers.Serializer[Any]]) -> Callable[[M], M]:
    """Describe the GET of an `EventsView`."""
    responses = {
        (200, "application/json"): document,
        (200, EVENT_STREAM): str,
        204: None,
        (503, CONTENT_TYPE): ProblemSerializer,
    }
    return described(operation_id=operation_id, parameters=[StreamQuery, LAST_EVENT_ID], responses=responses)


def _opens(request: Request) -> bool:
    """Return whether a connection stays open for the events."""
    return _are_events(request) and isinstance(request._request, ASGIRequest)


def _are_events(request: Request) -> bool:
    return bool(request.accepted_renderer.media_type == EVENT_STREAM)


# -- the changes in a run's history


class StreamView(EventsView):
    @_streamed("stream_events", NewsSerializer)
    def get(self, request: Request, run_id: str) -> HttpResponseBase:
        """Return the entries of the run, and from then on each that is new or has changed, until the run has ended.

        With `Accept: text/event-stream` they are server-sent events. Under ASGI the connection stays open. Under WSGI
        it ends after the available events, or after `wait` seconds, and the client, like every `EventSource`,
        reconnects. Otherwise they are one JSON document, as soon as there is an event, after `wait` seconds at most. To
        continue after an event, send `Last-Event-ID`, or `after`. 204: the run has ended, and there is nothing new.

        The events: `entry` (an entry that is new or changed, without payloads; it replaces the one at its location),
        `removed` (`locations` that are empty now), `reset` (drop all entries: they are sent again), `run` (the run's
        row has changed), `end` (the run has ended, nothing follows).
        """
        query = StreamQuery.read(request.query_params)
        query["after"] = request.headers.get("Last-Event-ID") or query.get("after", "")
        since = Token.parsed(query["after"]) if query["after"] else None

        def read() -> Run:
            return visible_run(request, run_id)

        follower, builder = Follower(read, since), EventBuilder(request)
        if _opens(request):
            return _stream(request, follower, builder)
        first = follower.look()
        if _is_over(follower, first):
            return HttpResponse(status=204)
        events, last = _polled(request, follower, builder, first, query)
        if _are_events(request):
            body = b"".join(encode_event(event) for event in events)
            return HttpResponse(body, content_type=EVENT_STREAM, headers=_HEADERS)
        shown = {"events": events, "last_event_id": last, "has_ended": any(event.event == "end" for event in events)}
        return Response(NewsSerializer(shown).data, headers=_HEADERS)


def _is_over(follower: Follower, first: News) -> bool:
    """Return whether the reader already has the end of the run, and nothing is new since."""
    since = follower.since
    return bool(since is not None and since.ended and first.has_ended and not first.has_changed)


def _stream(request: Request, follower: Follower, builder: EventBuilder) -> HttpResponseBase:
    slot = broadcaster.streams.take(owner_of(request))  # before anything is read for the stream
    try:
        first = follower.look()
        if _is_over(follower, first):
            slot.release()
            return HttpResponse(status=204)
        connections.close_all()  # this thread is idle until the stream ends
        events = slot.released_after(broadcaster.events(slot, follower, builder, first))
        return StreamingHttpResponse(events, content_type=EVENT_STREAM, headers=_OPEN)
    except BaseException:
        slot.release()
        raise


def _polled(
    request: Request, follower: Follower, builder: EventBuilder, first: News, query: dict[str, Any]
) -> tuple[list[StreamEvent], str]:
    """Return the events as soon as there are some, and the id to continue from."""
    news = first

    def look() -> list[StreamEvent] | None:
        nonlocal news
        news = follower.look()
        return list(builder.events(news)) or None

    events = list(builder.events(first)) or wait_for(request, look, query["wait"]) or []
    ids = [event.id for event in events if event.id]
    size = news.size
    while news.has_more and (not ids or (len(events) < _MOST_EVENTS and size < MAX_BYTES)):
        # without an id the reader would get the same events again
        events += look() or []
        size += news.size
        ids = [event.id for event in events if event.id]
    return events, ids[-1] if ids else str(news.token)


# -- what a running step emits

MOST: Final = 2_000  # streams of one process
MOST_OF_ONE: Final = 50  # of one user in one process

_slots = Slots(lambda: (MOST, MOST_OF_ONE))


class ChunkSerializer(serializers.Serializer[Any]):
    """One event of a step's stream."""

    event = serializers.ChoiceField(choices=["chunk", "restart", "result", "failed"])
    value = serializers.JSONField(help_text="What was emitted, or returned. Of `failed` the error.")
    attempt = serializers.IntegerField(help_text="From 1 on; 0 for the last event.")
    id = serializers.CharField(help_text="Give it as `after` to go on behind this event.")


@extend_schema_serializer(component_name="Chunks")
class ChunksSerializer(serializers.Serializer[Any]):
    """What a step has emitted, in order."""

    chunks = ChunkSerializer(many=True)
    has_ended = serializers.BooleanField(help_text="Nothing follows.")


class ChunksView(EventsView):
    reads_with = ("view_run", "view_payload")

    @_streamed("stream_step", ChunksSerializer)
    def get(self, request: Request, run_id: str, location: str) -> HttpResponseBase:
        """Return what the step at the location emits while it runs, until it has ended.

        With `Accept: text/event-stream` they are server-sent events. Under ASGI the connection stays open. Under WSGI
        it ends after the available events, or after `wait` seconds, and the client, like every `EventSource`,
        reconnects. Otherwise they are one JSON document. To continue after an event, send `Last-Event-ID`, or `after`.
        204: the step has ended, and the client has its last event.

        The events: `chunk` (what the step emits), `restart` (another attempt begins: drop the chunks that came before),
        and at last `result` (what the step has returned) or `failed`. Chunks are not kept for long: a client that comes
        when the step has ended gets the last event alone.
        """
        query = StreamQuery.read(request.query_params)
        after = request.headers.get("Last-Event-ID") or query.get("after", "")
        run = visible_run(request, run_id)
        if after == reading.END:
            return HttpResponse(status=204)
        if _opens(request):
            slot = _slots.take(owner_of(request))
            connections.close_all()  # this thread is idle until the stream ends
            events = slot.released_after(_chunks(slot, request, run, location, after))
            return StreamingHttpResponse(events, content_type=EVENT_STREAM, headers=reading.HEADERS)

        def look() -> list[reading.Chunk] | None:
            with suppress(RunNotFoundError):  # it was pruned meanwhile, or a test's transaction has it
                return reading.read_available(run.id, location, after) or None
            return None

        chunks = [_shown(run, location, each) for each in wait_for(request, look, query["wait"]) or []]
        if _are_events(request):
            return HttpResponse(reading.encoded(chunks), content_type=EVENT_STREAM, headers=reading.HEADERS)
        shown = {"chunks": chunks, "has_ended": any(each.is_last for each in chunks)}
        return Response(ChunksSerializer(shown).data, headers={"Cache-Control": "no-store"})


def _shown(run: Run, location: str, chunk: reading.Chunk) -> reading.Chunk:
    """Return the chunk with its value as it may be seen."""
    return replace(chunk, value=of_stream(run.workflow, location, chunk.event, chunk.value))


async def _chunks(slot: StreamSlot, request: Request, run: Run, location: str, after: str) -> AsyncIterator[bytes]:
    """Yield the events until the step has ended, the time is over, or the user may no longer see them."""
    if not _slots.begin(slot):
        return
    begun = asked = time.monotonic()
    try:
        async for each in reading.events(run.id, location, after, partial(_shown, run, location)):
            yield each
            now = time.monotonic()
            if now - begun >= broadcaster.LONGEST:
                return
            if now - asked >= broadcaster.RIGHTS:
                asked = now
                if not await _slots.read(partial(_may_read, request, run.id)):
                    return
    except DatabaseError as error:
        broadcaster.logger.warning("a stream of a step was cut off; its reader will reconnect: %s", error)
    finally:
        slot.release()


def _may_read(request: Request, run_id: str) -> bool:
    if not (is_still_permitted(request) and may(request, "view_payload")):
        return False
    return not is_limited() or visible_runs(request).filter(pk=run_id).exists()
