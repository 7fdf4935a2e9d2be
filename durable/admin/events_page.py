"""Published events with the runs that got them, and the runs that wait for events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from durable.admin import access
from durable.admin.pages import AdminPages
from durable.core.records import EntryKind
from durable.inspection.humanize import thousands
from durable.inspection.pagination import InvalidCursorError, cursor_of, key_of
from durable.inspection.published import WINDOW, list_events, list_waits
from durable.models import Entry

PAGE: Final = 50  # rows of each of the two tables


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the events of a name, a key, or both, and the runs that wait for such."""
    name, key = request.GET.get("event", "").strip(), request.GET.get("key", "").strip()
    events = list_events(name=name, key=key, before=_before(request, "events", int), limit=PAGE + 1)
    waits = list_waits(name=name, key=key, before=_before(request, "waits", str), limit=PAGE + 1)
    asked = {each: value for each, value in (("event", name), ("key", key)) if value}
    context = {
        "title": _("Events"),
        "name": name,
        "key": key,
        "events": events[:PAGE],
        "waits": waits[:PAGE],
        "next_events": _next(asked, "events", [each.event.pk for each in events]),
        "next_waits": _next(asked, "waits", [each.pk for each in waits]),
        "window": thousands(WINDOW) if bool(name) != bool(key) else "",
    }
    return admin.page(request, "events", context)


def url_of_wait(admin: AdminPages, entry: Entry) -> str:
    """Return the address of the events for which the entry waits; "" if it waits for none, or there is no such page."""
    is_offered = entry.kind == EntryKind.MESSAGE and access.is_offered("events")
    awaited: Any = entry.data.get("event") if is_offered else None
    return f"{admin.url('events')}?{urlencode({'event': awaited['name'], 'key': awaited['key']})}" if awaited else ""


def _before(request: HttpRequest, table: str, kind: type) -> Any:
    """Return the key behind which a table begins, None for its beginning."""
    try:
        key = key_of(request.GET.get(table) or None, kind)
    except InvalidCursorError:
        return None
    return None if key is None else key[0]


def _next(asked: dict[str, str], table: str, keys: Sequence[int | str]) -> str:
    return f"?{urlencode({**asked, table: cursor_of(keys[PAGE - 1])})}" if len(keys) > PAGE else ""
