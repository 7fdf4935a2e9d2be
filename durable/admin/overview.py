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
    collect_findings,
    count_by_state,
    list_causes,
    worker_overview,
)
from durable.inspection.counts import CAP

__all__ = ["context", "show"]

CAUSES: Final = 8  # that the overview has
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
    causes = list_causes(now, muted=False, most=CAUSES + 1)
    found = attention.rows_of_findings(collect_findings(now, workers, failed=[]), site)  # a cause has the failed ones
    rows = [*attention.rows_of_causes(causes[:CAUSES], site), *found]
    states = count_by_state()
    return {
        "now": now,
        "headline": attention.headline(rows, has_more=len(causes) > CAUSES),
        "rows": rows,
        "has_more": len(causes) > CAUSES,
        "has_urgent_findings": any(row.is_urgent for row in found),
        "failed": states["failed"],
        "states": [(state, count, f"?{urlencode({'state': state})}") for state, count in states.items()],
        "count_cap": CAP,
        "may": {each: access.may(request, each) for each in ("view_payload", "operate_run")},
        "charts": ended_charts(now, site=site),
        "workers": workers,
    }
