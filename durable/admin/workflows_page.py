"""The workflows: a page of all, and one of each with its code, its numbers, its steps and its verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.charts import ended_charts
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.conf import conf
from durable.core.records import HoldKind
from durable.definitions import Workflow
from durable.inspection.humanize import decimal, span
from durable.inspection.queues import find_hold
from durable.inspection.workers import worker_overview
from durable.inspection.workflow_code import code_of, source_of
from durable.inspection.workflows import (
    CAP,
    OPEN,
    SAMPLE,
    builds_in_flight,
    list_workflows,
    workflow_causes,
    workflow_of,
    workflow_stats,
)


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the workflows by name, those after `?after=`."""
    now, after = pages.now(), request.GET.get("after", "")
    workflows, has_more = list_workflows(now, after)
    everyone = pages.with_children()
    context = {
        "title": _("Workflows"),
        "cap": CAP,
        "workflows": [
            (each, admin.url("workflow", each.name), _runs_url(admin, everyone, workflow=each.name, state="failed"))
            for each in workflows
        ],
        "is_first": not after,
        "next_url": f"?{urlencode({'after': workflows[-1].name})}" if has_more else "",
    }
    return admin.page(request, "workflows", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one workflow. The page is the same under all of its names."""
    now, found = pages.now(), workflow_of(as_id(key))
    name, workflow = found.name, found.definition
    hold = find_hold(HoldKind.WORKFLOW, name)
    within = access.within(request)
    runs = access.visible_runs(request).filter(workflow__in=found.names)
    if workflow is None and (hold is None or within is not None) and not runs.exists():
        raise Http404(
            gettext('There is no workflow "%(workflow)s": neither this process nor a run knows it.')
            % {"workflow": name}
        )
    stats = workflow_stats(found.names, within)
    queue = conf.QUEUE if workflow is None else workflow.queue
    # Whether there are children at all would reveal hidden ones.
    everyone = pages.with_children(None if within is None else True)
    may_see_source = workflow is not None and access.may(request, "view_source")
    context: dict[str, Any] = {
        "title": name,
        "name": name,
        "other_names": found.other_names,
        "code": None if workflow is None else code_of(workflow, may_see_payloads=access.may(request, "view_payload")),
        "source": source_of(workflow) if workflow is not None and may_see_source else "",
        "hold": hold,
        "stats": stats,
        "charts": ended_charts(now, name, admin.admin_site.name, everyone=everyone) if within is None else None,
        "open_window": OPEN if stats.is_windowed else None,
        "causes_window": SAMPLE if stats.failed.number > SAMPLE else None,
        "steps": [
            (each, each.place == stats.flakiest, each.place == stats.slowest, _failed_share(each.failed, each.sampled))
            for each in stats.steps
        ],
        "places": [(each, _runs_url(admin, everyone, workflow=name, state=each.state)) for each in stats.places],
        "causes": [
            (cause, number, admin.url("cause", cause.fingerprint))
            for cause, number in workflow_causes(found.names, within)
        ],
        "builds": _builds(queue) if within is None else [],
        "queue_url": admin.url("queue", queue),
        "runs_url": _runs_url(admin, everyone, workflow=name),
        "failed_url": _runs_url(admin, everyone, workflow=name, state="failed"),
        "start_url": admin.url("workflow_start", name) if isinstance(workflow, Workflow) else "",
        "hold_url": admin.url("workflow_hold", name, "hold"),
        "release_url": admin.url("workflow_hold", name, "release"),
        "p50": None if stats.p50 is None else span(stats.p50),
        "p95": None if stats.p95 is None else span(stats.p95),
    }
    return admin.page(request, "workflow", context)


def _builds(queue: str) -> list[tuple[str, int]]:  # apart, so that a test sees that the page of some runs lacks it
    return builds_in_flight(worker_overview(), queue)


def _runs_url(admin: AdminPages, everyone: Mapping[str, str], **wanted: str) -> str:
    return f"{admin.url('changelist')}?{urlencode({**wanted, **everyone})}"


def _failed_share(failed: int, sampled: int) -> str:
    return gettext("%(number)s %%") % {"number": decimal(100 * failed / sampled)} if sampled else "—"
