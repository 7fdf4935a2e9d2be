"""Moments as the pages show them."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from durable.inspection import humanize


def moment(then: datetime | None, now: datetime) -> SafeString | str:
    """A time on the clock and from now, with all of it for machines and on hovering."""
    if then is None:
        return "—"
    return format_html(
        '<time datetime="{}" title="{}">{} <span class="durable-quiet">(<span data-durable-relative="2">{}</span>)</span></time>',
        then.isoformat(),
        f"{timezone.localtime(then):%Y-%m-%d %H:%M:%S.%f %Z}",
        humanize.moment(then, now),
        humanize.relative(then, now),
    )
