"""Payloads: an excerpt inside another page, a page of its own in parts, and a download.

An address has `of=input` or `of=output`, `of=message` or `of=response` with the message's `id`, or `at=` an entry's
location with the `of=` name of one of its payloads. With `find=`, the page lists the places of these words.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from durable.admin import access, pages
from durable.admin.pages import AdminPages
from durable.admin.text import downloaded
from durable.conf import conf
from durable.core.numbers import read_whole
from durable.core.places import Place, of_message
from durable.inspection.counting import Count
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.humanize import byte_size, printable, thousands
from durable.inspection.payloads import PAGE_BYTES, PART, Fold, PayloadText, TooLarge, folded, payload, read_within
from durable.inspection.wording import display_location, display_queue
from durable.models import QueueMessage, Run

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

MOST: Final = 20_000  # characters of a payload inside another page


_TITLES: Final[Mapping[str, StrPromise]] = {
    "input": pgettext_lazy("payload", "input"),
    "output": pgettext_lazy("payload", "output"),
    "message": pgettext_lazy("payload", "message of %(queue)s"),
    "response": pgettext_lazy("payload", "response of %(queue)s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadView:
    """A payload for a template: `html` is the shown part, `left` the number of characters not shown.

    `url` is the payload's own page, `raw_url` the download. A payload that is too large for any page has a `problem`
    instead of `html`.
    """

    name: str
    html: SafeString | str
    size: str
    left: int
    url: str
    raw_url: str
    problem: str = ""


def view_of(
    admin: AdminPages, run_id: str, name: str, value: Any, address: dict[str, str], most: int = MOST
) -> PayloadView:
    """Return the excerpt of `value`, JSON data or a `TooLarge`; `address` are the parameters of its own page."""
    query = urlencode(address, errors="backslashreplace")
    url = f"{admin.url('payload', run_id)}?{query}"
    links = {"name": name, "url": url, "raw_url": f"{admin.url('raw', run_id)}?{query}"}
    if isinstance(value, TooLarge):
        return PayloadView(html="", size=byte_size(value.size), left=0, problem=str(value), **links)
    text = PayloadText(value)
    return PayloadView(
        html=folded_html(value, most), size=byte_size(text.size), left=max(0, len(text.text) - most), **links
    )


def payload_title(name: str, of: str = "") -> str:
    """Return the name of a payload of a run, or of a message in the queue `of`, for people."""
    return str(_TITLES[name]) % {"queue": display_queue(of)}


def folded_html(value: Any, most: int) -> SafeString:
    """Return the text of `value` in which each object and array can be folded; at most `most` characters of it."""
    html: list[str] = []
    open_folds, left = 0, most
    for piece in folded(value):
        if isinstance(piece, Fold):
            html.append(f"<details open><summary>{escape(piece.head)} <span>{thousands(piece.size)}</span></summary>")
            open_folds += 1
            left -= len(piece.head) + 1
        elif piece is None:
            html.append("</details>")
            open_folds -= 1
        else:
            html.append(escape(piece[:left]))
            left -= len(piece)
        if left <= 0:
            html.append("…")
            break
    html.append("</details>" * open_folds)
    return mark_safe("".join(html))  # noqa: S308  # each piece is escaped


_OF_RUN = ("input", "output")
_OF_MESSAGE = {"message": "body", "response": "response"}
_ANY_SIZE = 2**62
_MOST_FOUND: Final = 1_000
_MOST_LISTED: Final = 50  # of these
_AROUND: Final = 60  # characters of a line around what was found in it


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show a part of the payload; a short payload can be folded."""
    access.demand(request, "view_payload")
    run = pages.find(request, key)
    title, value = _find(request, run, PAGE_BYTES)
    address = {name: request.GET[name] for name in ("of", "at", "id") if name in request.GET}
    context: dict[str, Any] = {
        "title": title,
        "run": run,
        "run_url": admin.url("change", run.id),
        "view": view_of(admin, run.id, title, value, address, most=0),
        "address": address,
    }
    if not isinstance(value, TooLarge):
        words = request.GET.get("find", "")[:200]
        text = PayloadText(value)
        parts = text.parts()
        found = text.find(words, _MOST_FOUND + 1)
        number = _part_of(request, parts, found)
        if found:
            html: SafeString | str = _marked(text, parts[number - 1], found)
        elif len(parts) == 1:
            html = folded_html(value, PART)
        else:
            begin, end = parts[number - 1]
            html = text.text[begin:end]
        context |= {
            "html": html,
            "number": number,
            "parts": len(parts),
            "previous": number - 1,
            "next": number + 1 if number < len(parts) else 0,
            "words": words,
            "find": f"&{urlencode({'find': words}, errors='backslashreplace')}" if words else "",
            "found": str(Count.up_to(_MOST_FOUND, len(found))),
            "found_lines": _found_lines(text, parts, found[:_MOST_LISTED], {**address, "find": words}),
            "are_more": len(found) > _MOST_LISTED,
        }
    return admin.page(request, "payload", context)


def _part_of(request: HttpRequest, parts: Sequence[tuple[int, int]], found: Sequence[tuple[int, int]]) -> int:
    """Return the number of the wanted part: by default that of the first match, or else the first."""
    wanted = read_whole(request.GET.get("part", ""))
    if wanted is not None:
        return min(max(1, wanted), len(parts))
    return _number_of(parts, found[0][0]) if found else 1


def _number_of(parts: Sequence[tuple[int, int]], position: int) -> int:
    return bisect_right(parts, position, key=lambda each: each[0])


def _marked(text: PayloadText, part: tuple[int, int], found: Sequence[tuple[int, int]]) -> SafeString:
    """Return the part of the text with the matches marked; a match that crosses the part's end is marked in both
    parts.
    """
    html: list[str] = []
    done, last = part
    for number, (begin, end) in enumerate(found[:_MOST_FOUND], 1):
        if end <= done or begin >= last:
            continue
        start, stop = max(begin, done), min(end, last)
        html.append(f'{escape(text.text[done:start])}<mark id="found-{number}">{escape(text.text[start:stop])}</mark>')
        done = stop
    html.append(escape(text.text[done:last]))
    return mark_safe("".join(html))  # noqa: S308  # each piece is escaped


def _found_lines(
    text: PayloadText, parts: Sequence[tuple[int, int]], found: Sequence[tuple[int, int]], address: dict[str, str]
) -> list[dict[str, Any]]:
    """Return of each match the number of its line, the text around it, and its address."""
    lines: list[dict[str, Any]] = []
    line, counted = 1, 0
    for number, (begin, end) in enumerate(found, 1):
        line += text.text.count("\n", counted, begin)
        counted = begin
        query = urlencode({**address, "part": _number_of(parts, begin)}, errors="backslashreplace")
        around = text.line_at(begin, end, _AROUND)
        lines.append({"number": line, "text": around, "url": f"?{query}#found-{number}"})
    return lines


def download(_admin: AdminPages, request: HttpRequest, key: str) -> HttpResponseBase:
    """Return the payload, decoded and redacted, as a JSON file that is written while it is sent."""
    access.demand(request, "view_payload")
    run = pages.find(request, key)
    _title, value = _find(request, run, _ANY_SIZE)
    pieces = map(printable, json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value))
    name, location = request.GET.get("of", ""), request.GET.get("at", "")  # the same in every language
    name = f"{name} of {display_location(location)}" if location else name
    return downloaded(request, pieces, f"{run.id} {name}.json")


def _find(request: HttpRequest, run: Run, most: int) -> tuple[str, Any]:
    """Return the title of the wanted payload, and its value as JSON data, or TooLarge above `most` bytes. Raises
    Http404.
    """
    name, location, message = (request.GET.get(each, "") for each in ("of", "at", "id"))
    if location:
        found = _of_entry(run, location, name, most)
    elif name in _OF_MESSAGE:
        found = _of_message(run, name, message, most)
    elif name in _OF_RUN:
        rows = Run.objects.using(conf.DATABASE).filter(pk=run.pk)
        found = (
            payload_title(name),
            _decoded(run, name, read_within(rows, name, most=most).get(run.pk), Place(run.id, name)),
        )
    else:
        found = "", None
    title, value = found
    if value is None:
        raise Http404(_("There is no such payload: the run has not recorded it, or it may have been pruned."))
    return title, value if isinstance(value, TooLarge) else value[0]


def _of_message(run: Run, name: str, message_id: str, most: int) -> tuple[str, Any]:
    rows = QueueMessage.objects.using(conf.DATABASE).filter(run=run, pk=message_id)
    row = rows.defer("body", "response").first()
    if row is None:
        return "", None
    read = read_within(rows, _OF_MESSAGE[name], most=most).get(row.pk)
    place = of_message(run.id, name, row.id, row.queue)
    return payload_title(name, row.queue), _decoded(run, f"{name}:{row.queue}", read, place)


def _of_entry(run: Run, location: str, name: str, most: int) -> tuple[str, Any]:
    detail = read_entry_detail(run, location, with_payloads=True, most=most)
    text, place = _("%(name)s of %(place)s"), display_location(location)
    field = next((each for each in detail.fields if each.name == name), None) if detail is not None else None
    title = text % {"name": name if field is None else field.title, "place": place}
    if detail is not None and detail.too_large is not None:
        return title, detail.too_large
    return title, None if field is None else [field.value]


def _decoded(run: Run, field: str, read: Any, place: Place) -> Any:
    """Return the value in a list, TooLarge, or None for a missing payload."""
    if isinstance(read, TooLarge) or read is None or read[0] is None:
        return read if isinstance(read, TooLarge) else None
    return [payload(run.workflow, field, read[0], place)]
