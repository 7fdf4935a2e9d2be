"""What runs now: a page of all running steps, the oldest first."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from durable.admin import pages
from durable.admin.base import AdminPages
from durable.inspection import ActivityPage, InvalidCursorError, list_activities
from durable.inspection.shell_command import command

__all__ = ["show"]


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list, or, for a page that refreshes itself, its table alone."""
    now, problem = pages.now(), ""
    try:
        page = list_activities(now, cursor=request.GET.get("after"))
    except InvalidCursorError as error:
        page, problem = ActivityPage(steps=()), str(error)
    marks = [(step.key, step.is_hung, step.stack_taken_at, step.abandon_asked_at) for step in page.steps]
    etag = pages.etag_of(now, *marks, request.GET.urlencode())
    is_live = "live" in request.GET
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    query = request.GET.copy()
    query["live"] = "1"
    context = {
        "title": "Running now",
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
