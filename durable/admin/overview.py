"""The overview: what needs a person, runs by state, how many ended and how long they took, queues and workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from durable.admin import access, attention, pages
from durable.admin.base import AdminPages
from durable.admin.ended_charts import ended_charts
from durable.inspection.causes import MOST, further_causes, list_causes
from durable.inspection.findings import Finding, collect_findings
from durable.inspection.workers import Workers, worker_overview
from durable.inspection.workflows import STATE_CAP, count_everyone

CAUSES: Final = 10  # that the overview and the admin's index show in full
FEWER: Final = 5  # that the index shows in full if there are further ones, so that these are on the first screen too
#: The text of a time from now: the browser counts it on, so it is no change of the page.
_FROM_NOW: Final = re.compile(r"(?<=data-durable-relative=\"1\">)[^<]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Rows of causes and findings that need a person, and short ones of `further` causes, not of all if `has_more`."""

    rows: Sequence[attention.Row]
    further: Sequence[attention.Row]
    has_more: bool
    findings: Sequence[Finding]

    @property
    def headline(self) -> str:
        """The sentence that says it."""
        return attention.headline(self.rows, further=len(self.further), has_more=self.has_more)

    @property
    def number(self) -> str:
        """The number of those that need a person, "" for none."""
        number = sum(row.is_urgent for row in self.rows) + len(self.further)
        return f"{number}{'+' if self.has_more else ''}" if number else ""

    @property
    def causes(self) -> Sequence[attention.Row]:
        """The rows of causes."""
        return [row for row in self.rows if row.is_urgent and row.newest]

    @property
    def of_index(self) -> tuple[Sequence[attention.Row], Sequence[attention.Row]]:
        """The causes that the admin's index shows in full, and the others."""
        most = FEWER if self.further else CAUSES
        return self.causes[:most], [*self.causes[most:], *self.further]


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
    everyone = pages.with_everyone(has_children)
    found = _attention(now, workers, site, has_children=has_children)
    return {
        "now": now,
        "headline": found.headline,
        "rows": attention.permitted(found.rows, partial(access.may, request)),
        "further": found.further,
        "has_more": found.has_more,
        "has_urgent_findings": any(each.is_urgent for each in found.findings),
        "paused": {
            each.wanted.queue for each in found.findings if each.kind == "queue_paused" and each.wanted is not None
        },
        "failed": states["failed"],
        "states": [(state, count, f"?{urlencode({'state': state, **everyone})}") for state, count in states.items()],
        "has_children": has_children,
        "count_cap": STATE_CAP,
        "may": {each: access.may(request, each) for each in ("view_payload", "operate_run")},
        "charts": ended_charts(now, site=site, everyone=everyone),
        "workers": workers,
    }


def needs_a_person(now: datetime, site: str) -> Attention:
    """Return what needs a person, for the admin's index."""
    return _attention(now, worker_overview(), site)


def _attention(now: datetime, workers: Workers, site: str, *, has_children: bool = False) -> Attention:
    causes = list_causes(now, muted=False, most=CAUSES)
    further = further_causes(after=CAUSES, most=MOST - CAUSES + 1) if len(causes) == CAUSES else []
    findings = collect_findings(now, workers, failed=[])  # a cause has the failed ones
    return Attention(
        rows=[
            *attention.rows_of_causes(causes, site),
            *attention.rows_of_findings(findings, site, with_children=has_children),
        ],
        further=attention.lines_of_causes(further[: MOST - CAUSES], site),
        has_more=len(further) > MOST - CAUSES,
        findings=findings,
    )
