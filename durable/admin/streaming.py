"""A long text as a response, piece by piece, under WSGI and ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

__all__ = ["CHUNK", "streamed"]

CHUNK: Final = 512 * 1024  # characters that are held at once


def streamed(request: HttpRequest, pieces: Iterator[str], content_type: str) -> HttpResponseBase:
    """The text as a response: streamed if it is longer than two chunks, else whole.

    What is raised while the first two chunks are made is raised here; later it can only cut the text off.
    """
    chunks = _chunks(pieces)
    begin = [each for each in (next(chunks, ""), next(chunks, "")) if each]
    if len(begin) < 2:
        return HttpResponse("".join(begin), content_type=content_type)
    text = chain(begin, chunks)
    # under ASGI Django would hold all of a synchronous iterator before it sends anything
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
