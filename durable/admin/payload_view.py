"""A payload on a page: its size, a bounded part of its text that can be folded, and the way to all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import pgettext_lazy

from durable.admin.base import AdminPages
from durable.inspection.humanize import byte_size, thousands
from durable.inspection.payloads import Fold, PayloadText, TooLarge, folded

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

MOST: Final = 20_000  # characters of a payload among other things


_TITLES: Final[Mapping[str, StrPromise]] = {
    "input": pgettext_lazy("payload", "input"),
    "output": pgettext_lazy("payload", "output"),
    "message": pgettext_lazy("payload", "message of %(queue)s"),
    "response": pgettext_lazy("payload", "response of %(queue)s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadView:
    """A payload for a template: `html` is the part that is shown, `left` the number of characters that are not.

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
    """Return what a page shows of `value`, JSON data or a `TooLarge`; `address` finds it (`payload_page`)."""
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
    text = _TITLES.get(name)
    return name if text is None else str(text) % {"queue": of}


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
