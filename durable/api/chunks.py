"""What a running step emits, as server-sent events or as JSON: `durable.streams`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, connections
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api import broadcaster
from durable.api.base import STREAM, View, is_still_permitted
from durable.api.broadcaster import Slots, StreamSlot
from durable.api.long_poll import wait_for
from durable.api.requests import EVENT_STREAM, EventStreamRenderer, JSONRenderer
from durable.api.schema import ProblemSerializer, described
from durable.api.stream import LAST_EVENT_ID, StreamQuery
from durable.core.errors import RunNotFoundError
from durable.inspection.payloads import of_stream
from durable.listings.access import is_limited, may, owner_of, visible_run, visible_runs
from durable.listings.problems import CONTENT_TYPE
from durable.models import Run
from durable.streams import reading

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


class ChunksView(View):
    """What a running step emits."""

    about = "history"
    reads_with = ("view_run", "view_payload")
    throttle_scope = STREAM
    waits = True
    http_method_names = ("get",)  # a HEAD request would open a stream
    renderer_classes = (JSONRenderer, EventStreamRenderer)

    @described(
        operation_id="stream_step",
        parameters=[StreamQuery, LAST_EVENT_ID],
        responses={
            (200, "application/json"): ChunksSerializer,
            (200, EVENT_STREAM): str,
            204: None,
            (503, CONTENT_TYPE): ProblemSerializer,
        },
    )
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
        is_stream = request.accepted_renderer.media_type == EVENT_STREAM
        if is_stream and isinstance(request._request, ASGIRequest):
            slot = _slots.take(owner_of(request))
            connections.close_all()  # this thread is idle until the stream ends
            events = slot.released_after(_events(slot, request, run, location, after))
            return StreamingHttpResponse(events, content_type=EVENT_STREAM, headers=reading.HEADERS)

        def look() -> list[reading.Chunk] | None:
            with suppress(RunNotFoundError):  # it was pruned meanwhile, or a test's transaction has it
                return reading.read_available(run.id, location, after) or None
            return None

        chunks = [_shown(run, location, each) for each in wait_for(request, look, query["wait"]) or []]
        if is_stream:
            return HttpResponse(reading.encoded(chunks), content_type=EVENT_STREAM, headers=reading.HEADERS)
        shown = {"chunks": chunks, "has_ended": any(each.is_last for each in chunks)}
        return Response(ChunksSerializer(shown).data, headers={"Cache-Control": "no-store"})


def _shown(run: Run, location: str, chunk: reading.Chunk) -> reading.Chunk:
    """Return the chunk with its value as it may be seen."""
    return replace(chunk, value=of_stream(run.workflow, location, chunk.event, chunk.value))


async def _events(slot: StreamSlot, request: Request, run: Run, location: str, after: str) -> AsyncIterator[bytes]:
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
