"""A long text as a response, in pieces, under WSGI and ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

CHUNK: Final = 512 * 1024  # characters in memory at a time


def streamed(request: HttpRequest, pieces: Iterator[str], content_type: str) -> HttpResponseBase:
    """Return the text as a response: streamed if it is longer than two chunks, else whole.

    An error in the first two chunks is raised here; a later error can only truncate the text.
    """
    chunks = _chunks(pieces)
    begin = [each for each in (next(chunks, ""), next(chunks, "")) if each]
    if len(begin) < 2:
        return HttpResponse("".join(begin), content_type=content_type)
    text = chain(begin, chunks)
    # Under ASGI Django would read all of a synchronous iterator into memory before it sends anything.
    body = _from_thread(text) if isinstance(request, ASGIRequest) else text
    return StreamingHttpResponse(body, content_type=content_type)


def _chunks(pieces: Iterator[str]) -> Iterator[str]:
    chunk: list[str] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
    yield "".join(chunk)


async def _from_thread(chunks: Iterator[str]) -> AsyncIterator[str]:
    def step() -> str | None:
        return next(chunks, None)

    while (chunk := await sync_to_async(step)()) is not None:
        yield chunk
