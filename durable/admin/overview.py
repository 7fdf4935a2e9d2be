"""The overview: what needs a person, runs by state, how many ended and how long they took, queues and workers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from durable.admin import access, attention, pages
from durable.admin.base import AdminPages
from durable.admin.ended_charts import ended_charts
from durable.inspection import (
    Finding,
    Workers,
    collect_findings,
    list_causes,
    worker_overview,
)
from durable.inspection.counts import CAP, count_everyone

__all__ = ["context", "needs_a_person", "show"]

CAUSES: Final = 10  # that the overview and the admin's index have
#: The text of a time from now: the browser counts it on, so it is no change of the page.
_FROM_NOW: Final = re.compile(r"(?<=data-durable-relative=\"1\">)[^<]*")


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the overview alone, for a page that refreshes itself."""
    now = pages.now()
    response = admin.page(request, "_overview", context(request, now))
    etag = pages.etag_of(now, _FROM_NOW.sub("", response.content.decode()))
    return pages.unchanged(etag) if pages.is_known(request, etag) else pages.tagged(response, etag)


def context(request: HttpRequest, now: datetime) -> dict[str, Any]:
    """Return what the overview shows at the moment `now`; a constant number of statements."""
    site = getattr(request, "current_app", "admin")
    workers = worker_overview()
    states, has_children = count_everyone()
    everyone = pages.with_children(has_children)
    rows, has_more, findings = _attention(now, workers, site, has_children=has_children)
    return {
        "now": now,
        "headline": attention.headline(rows, has_more=has_more),
        "rows": rows,
        "has_more": has_more,
        "has_urgent_findings": any(each.is_urgent for each in findings),
        "paused": {each.wanted.queue for each in findings if each.kind == "queue_paused" and each.wanted is not None},
        "failed": states["failed"],
        "states": [(state, count, f"?{urlencode({'state': state, **everyone})}") for state, count in states.items()],
        "has_children": has_children,
        "count_cap": CAP,
        "may": {each: access.may(request, each) for each in ("view_payload", "operate_run")},
        "charts": ended_charts(now, site=site, everyone=everyone),
        "workers": workers,
    }


def needs_a_person(now: datetime, site: str) -> tuple[str, str, list[attention.Row]]:
    """Return how many rows of the overview need a person, "" for none, its headline, and the newest causes among the rows."""
    rows, has_more, _findings = _attention(now, worker_overview(), site)
    urgent = [row for row in rows if row.is_urgent]
    number = f"{len(urgent)}{'+' if has_more else ''}" if urgent else ""
    return number, attention.headline(rows, has_more=has_more), [row for row in urgent if row.newest]


def _attention(
    now: datetime, workers: Workers, site: str, *, has_children: bool = False
) -> tuple[list[attention.Row], bool, list[Finding]]:
    """Return the rows of what needs a person, whether there are more causes, and the findings among the rows."""
    causes = list_causes(now, muted=False, most=CAUSES + 1)
    findings = collect_findings(now, workers, failed=[])  # a cause has the failed ones
    rows = [
        *attention.rows_of_causes(causes[:CAUSES], site),
        *attention.rows_of_findings(findings, site, with_children=has_children),
    ]
    return rows, len(causes) > CAUSES, findings
