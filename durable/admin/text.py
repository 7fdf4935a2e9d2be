"""Foreign text: as parts of URLs, in pages, and in long responses sent in pieces.

Ids, names, queues, messages and reasons come from elsewhere, and stand in sentences that `durable.inspection` makes. So
`with_visible_text` is applied once to each rendered page, after escaping, and no template can forget it. It shows
characters that hide or reorder text, and isolates right-to-left text. Values of attributes stay as they are: forms send
them back. The contents of text areas do too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Final
from urllib.parse import quote as url_quote

from asgiref.sync import sync_to_async
from django.contrib.admin.utils import quote, unquote
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import RFC3986_SUBDELIMS, content_disposition_header

from durable.inspection.humanize import ALWAYS_HIDDEN, visible

_ANY: Final = "anyrun"  # a key that is quoted by itself
_SAFE: Final = f"{RFC3986_SUBDELIMS}/~:@"  # characters that `reverse` leaves as they are

#: Browsers interpret these as paths, and Django's quoting leaves them as they are. No other id is quoted like these.
_PLACES = {".": "_2E", "..": "_2E_2E"}
_IDS = {key: run_id for run_id, key in _PLACES.items()}


def as_key(run_id: str) -> str:
    """Quote the id for a URL."""
    return _PLACES.get(run_id) or str(quote(run_id))


def as_id(key: str) -> str:
    """Return the id from its quoted form."""
    return _IDS.get(key) or str(unquote(key))


def location_query(location: str) -> str:
    """Return a location as a parameter of an address."""
    return f"?at={url_quote(location, safe='')}"


def url_maker(name: str, site: str, *rest: str) -> Callable[[str], str]:
    """Return a function of an id, or of another key, that returns the URL of its page in an admin site.

    `rest` is the part of the URL after the key. For a page with hundreds of links: the address is looked up once.
    """
    url = reverse(f"admin:durable_run_{name}", args=[_ANY, *rest], current_app=site)
    before, _, after = url.rpartition(_ANY)
    return lambda given: f"{before}{url_quote(as_key(given), safe=_SAFE)}{after}"


_RIGHT_TO_LEFT: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff"
#: Words written from right to left, with the text between them.
_WORDS: Final = re.compile(f"[{_RIGHT_TO_LEFT}](?:[^<>&A-Za-z0-9]*?[{_RIGHT_TO_LEFT}])*")
#: One set of characters without alternatives, for speed: each page is searched for it.
_OF_INTEREST: Final = re.compile(f"[{ALWAYS_HIDDEN}\u200c\u200d{_RIGHT_TO_LEFT}]")
_TAG: Final = re.compile(r"(<[^>]*>)")
_NAME: Final = re.compile(r"</?([a-z]+)")
_RAW: Final = frozenset({"textarea", "script", "style"})
_TEXT_ONLY: Final = frozenset({"title", "option"})  # elements that can hold no other elements


def with_visible_text(html: str) -> str:
    """Return a page in which the texts between its tags are made visible as the module describes."""
    if html.isascii() or _OF_INTEREST.search(html) is None:
        return html
    parts = _TAG.split(html)  # texts, and tags at odd positions
    inside = ""
    for position, part in enumerate(parts):
        if position % 2:
            found = _NAME.match(part)
            inside = found[1] if found is not None and not part.startswith("</") else ""
        elif part and inside not in _RAW:
            parts[position] = _shown(part, isolates=inside not in _TEXT_ONLY)
    return "".join(parts)


def _shown(text: str, *, isolates: bool) -> str:
    text = visible(text)
    return _WORDS.sub(r"<bdi>\g<0></bdi>", text) if isolates else text


CHUNK: Final = 512 * 1024  # characters in memory at a time


def downloaded(request: HttpRequest, pieces: Iterator[str], filename: str) -> HttpResponseBase:
    """Return JSON text as a file, which is written while it is sent if it is longer than two chunks.

    An error in the first two chunks is raised here; a later error can only truncate the text.
    """
    chunks = _chunks(pieces)
    begin = [each for each in (next(chunks, ""), next(chunks, "")) if each]
    response: HttpResponseBase
    if len(begin) < 2:
        response = HttpResponse("".join(begin), content_type="application/json")
    else:
        text = chain(begin, chunks)
        # Under ASGI Django would read all of a synchronous iterator into memory before it sends anything.
        body = _from_thread(text) if isinstance(request, ASGIRequest) else text
        response = StreamingHttpResponse(body, content_type="application/json")
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    disposition = content_disposition_header(as_attachment=True, filename=filename)
    response["Content-Disposition"] = disposition or "attachment"
    return response


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
