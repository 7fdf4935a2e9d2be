"""Moments in the time zone of the browser, which the pages' script stores in a cookie.

Without a cookie (and so without JavaScript) the zone in force is used: the project's, or the one that a middleware of
the project has activated for the user. The latter also takes precedence over the cookie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from durable.inspection import humanize


def moment(then: datetime | None, now: datetime) -> SafeString | str:
    """Render a time, absolute and relative, with the full time for machines and on hovering."""
    if then is None:
        return "—"
    return format_html(
        '<time datetime="{}" title="{}">{} <span class="durable-quiet">(<span data-durable-relative="2">{}</span>)</span></time>',
        then.isoformat(),
        f"{timezone.localtime(then):%Y-%m-%d %H:%M:%S.%f %Z}",
        humanize.moment(then, now),
        humanize.relative(then, now),
    )


COOKIE: Final = "durable_zone"
_LONGEST: Final = 64  # characters of a zone's name


@contextmanager
def viewers_zone(request: HttpRequest) -> Iterator[None]:
    """Show moments in the block in the browser's time zone, if it is known and the project has not chosen another
    one.
    """
    chosen = _zone(request.COOKIES.get(COOKIE, "")[: _LONGEST + 1])
    if chosen is None or is_of_viewer():
        yield
        return
    with timezone.override(chosen):
        yield


def is_of_viewer() -> bool:
    """Return whether the zone in force differs from the project's."""
    return timezone.get_current_timezone_name() != timezone.get_default_timezone_name()


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | None:
    """Return the zone of this name; None for an invalid name."""
    if not name or len(name) > _LONGEST:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):  # unknown, a directory of zones, no name of a file
        return None
