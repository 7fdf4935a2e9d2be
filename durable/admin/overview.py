"""The overview: runs that need attention, runs by state, failures with their causes, and workers with their runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from durable.admin import charts, pages
from durable.admin.base import AdminPages
from durable.inspection import (
    collect_findings,
    count_by_state,
    failed_runs,
    failure_groups,
    last_day,
    last_hour,
    worker_overview,
)
from durable.inspection.counts import CAP
from durable.inspection.failures import NEWEST

__all__ = ["context", "show"]


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the overview alone, for a page that refreshes itself."""
    now = pages.now()
    response = admin.page(request, "_overview", context(now))
    etag = pages.etag_of(now, response.content.decode())
    return pages.unchanged(etag) if pages.is_known(request, etag) else pages.tagged(response, etag)


def context(now: datetime) -> dict[str, Any]:
    """Return what the overview shows at the moment `now`; a constant number of statements."""
    edge = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    workers, failed = worker_overview(), failed_runs()
    return {
        "now": now,
        "states": [(state, count, f"?{urlencode({'state': state})}") for state, count in count_by_state().items()],
        "count_cap": CAP,
        "findings": collect_findings(now, workers, failed=failed),
        "groups": failure_groups(failed),
        "failures_cap": NEWEST if len(failed) >= NEWEST else 0,
        "charts": [charts.chart("The last hour", last_hour(edge)), charts.chart("The last day", last_day(edge))],
        "workers": workers,
    }
