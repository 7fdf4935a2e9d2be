"""One entry of a run's history: its arguments, its result, and each attempt."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from durable.admin import access, pages
from durable.admin.base import AdminPages
from durable.core.location import display_location
from durable.inspection import pretty, read_entry_detail, redacted_error, redacted_traceback
from durable.inspection.shell_command import command

__all__ = ["show"]


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the entry at the location `at`."""
    run = pages.find(key)
    location = request.GET.get("at", "")
    with_payloads = access.may(request, "view_payload")
    detail = read_entry_detail(run, location, with_payloads=with_payloads)
    if detail is None:
        raise Http404(f'The run has no entry "{location}": a loop, a race or a replay may have pruned it.')
    metadata = detail.entry.metadata
    context = {
        "title": display_location(location),
        "subtitle": f"{detail.entry.kind.replace('_', ' ')} of run {run.id}",
        "now": pages.now(),
        "run": run,
        "run_url": admin.url("change", run.id),
        "detail": detail,
        "entry": detail.entry,
        "metadata": metadata,
        "fields": [(field.name, pretty(field.value)) for field in detail.fields],
        "error": redacted_error(run.workflow, metadata.error),
        "traceback": redacted_traceback(run.workflow, metadata.error) if with_payloads else "",
        "rollback_error": redacted_error(run.workflow, metadata.rollback_error),
        "rollback_traceback": redacted_traceback(run.workflow, metadata.rollback_error) if with_payloads else "",
        "step_url": admin.url("step", run.id),
        "replay_url": admin.url("replay", run.id),
        "replay_command": command("replay", run.id, location),
    }
    return admin.page(request, "step", context)
