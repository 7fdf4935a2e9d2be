"""The overview: runs that need attention, failed ones by cause, runs by state, and workers with their runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from durable.admin import access, causes_page, charts, pages
from durable.admin.base import AdminPages
from durable.inspection import (
    collect_findings,
    count_by_state,
    last_day,
    last_hour,
    list_causes,
    worker_overview,
)
from durable.inspection.counts import CAP

__all__ = ["context", "show"]

CAUSES: Final = 8  # causes that the overview has
#: The kinds of findings for which there is a row for each cause.
_TOLD_BY_CAUSE: Final = frozenset({"exhausted", "failed"})


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the overview alone, for a page that refreshes itself."""
    now = pages.now()
    response = admin.page(request, "_overview", context(request, now))
    etag = pages.etag_of(now, response.content.decode())
    return pages.unchanged(etag) if pages.is_known(request, etag) else pages.tagged(response, etag)


def context(request: HttpRequest, now: datetime) -> dict[str, Any]:
    """Return what the overview shows at the moment `now`; a constant number of statements."""
    edge = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    workers = worker_overview()
    findings = [each for each in collect_findings(now, workers) if each.kind not in _TOLD_BY_CAUSE]
    return {
        "now": now,
        "states": [(state, count, f"?{urlencode({'state': state})}") for state, count in count_by_state().items()],
        "count_cap": CAP,
        "causes": causes_page.shown(list_causes(now, muted=False, most=CAUSES)),
        "findings": findings,
        "may": {each: access.may(request, each) for each in ("view_payload", "operate_run")},
        "charts": [charts.chart("The last hour", last_hour(edge)), charts.chart("The last day", last_day(edge))],
        "workers": workers,
    }
