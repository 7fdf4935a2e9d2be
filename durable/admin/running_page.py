"""The pages of running steps: one of all, the oldest first, and one of each step with its stack."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable.admin import access, pages, sight
from durable.admin.base import AdminPages
from durable.inspection.activities import ActivityPage, activities_of, list_activities, read_stack, saved_by
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.payloads import pretty
from durable.inspection.wording import command, display_location, told


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list, or, for a page that refreshes itself, its table alone."""
    now, problem = pages.now(), ""
    try:
        page = list_activities(now, cursor=request.GET.get("after"), within=sight.within(request))
    except InvalidCursorError as error:
        page, problem = ActivityPage(steps=()), told(error)
    marks = [(step.key, step.is_hung, step.stack_taken_at, step.abandon_asked_at) for step in page.steps]
    etag = pages.etag_of(now, *marks, request.GET.urlencode())
    is_live = "live" in request.GET
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    query = request.GET.copy()
    query["live"] = "1"
    context = {
        "title": _("Running now"),
        "now": now,
        "problem": problem,
        "steps": page.steps,
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("after"),
        "live_query": f"?{query.urlencode()}",
        "etag": etag,
        "copies": [command("running")],
    }
    if is_live:
        return pages.tagged(admin.page(request, "_running", context), etag)
    return admin.page(request, "running", context)


def show_step(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the step that runs at the location `at`, or, for a page that refreshes itself, the part that changes."""
    run, now, location = pages.find(request, key), pages.now(), request.GET.get("at", "")
    at = f"?{urlencode({'at': location})}"
    step = next((each for each in activities_of(run, now, sight.within(request)) if each.location == location), None)
    is_live = "live" in request.GET
    if step is None and not is_live:
        return HttpResponseRedirect(f"{admin.url('change', run.id)}")
    may_see = access.may(request, "view_payload")
    saved = saved_by(run, [location]) if may_see and step is not None else {}
    marks = () if step is None else (step.key, step.is_hung, step.stack_asked_at, step.stack_taken_at)
    etag = pages.etag_of(now, *marks, None if step is None else step.abandon_asked_at, saved)
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    stack = read_stack(run, location, now) if may_see else None
    context: dict[str, Any] = {
        "title": display_location(location),
        "place": "durable_run_running",
        "now": now,
        "run": run,
        "run_url": admin.url("change", run.id),
        "step": step,
        "stack": stack,
        "saved": pretty(saved[location]) if location in saved else "",
        "step_url": f"{admin.url('step', run.id)}{at}",
        "abandon_url": f"{admin.url('act', run.id, 'abandon')}{at}",
        "cancel_url": f"{admin.url('act', run.id, 'cancel')}?interrupt=on",
        "stack_url": f"{admin.url('act', run.id, 'take_stack')}{at}",
        "live_query": f"{at}&live=1",
        "etag": etag,
        "copies": [command("stack", run.id, location=location), command("abandon", run.id, location=location)],
    }
    return pages.tagged(admin.page(request, "_running_step" if is_live else "running_step", context), etag)
