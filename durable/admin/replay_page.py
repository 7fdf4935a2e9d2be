"""Replaying a run from a step: a preview of what is removed, kept and returned, and then exactly that replay."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect

from durable import operations
from durable.admin import access, action_page, pages
from durable.admin.base import AdminPages
from durable.admin.forms import ReplayRunForm
from durable.core.errors import EntryNotFoundError
from durable.core.ids import new_id
from durable.core.location import display_location
from durable.inspection import reading
from durable.inspection.shell_command import command
from durable.models import Run
from durable.operations.audit import acting_as
from durable.operations.replay_plan import ReplayPlan

__all__ = ["show"]

_SHOWN = 50  # locations of each list


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the preview, or replay."""
    action_page.admit(request, "replay", unquote(key))
    run = pages.find(key)
    location = request.GET.get("at", "")
    plan = _plan(run, location)
    is_posted = request.method == "POST"
    form = ReplayRunForm(request.POST if is_posted else None, initial={"plan_hash": plan.hash, "token": new_id()})
    problem, status = "", 200
    if is_posted:
        status = 422
        if form.is_valid():
            try:
                shown = _replay(request, run, location, form.cleaned_data)
            except action_page.Refusal as refusal:
                problem, status = refusal.why, refusal.status
                run, plan = pages.find(key), _plan(run, location)
                form = ReplayRunForm({**request.POST.dict(), "plan_hash": plan.hash})
            else:
                messages.success(request, "It runs again from there; this is the run that does.")
                return HttpResponseRedirect(admin.url("change", shown))
    context = {
        **action_page.asking_context(admin, run),
        "title": f"Replay run {run.id} from {display_location(location)}",
        "form": form,
        "problem": problem,
        "plan": plan,
        "parts": list(_parts(plan)),
        "location": location,
        "command": command("replay", run.id, location),
    }
    return admin.page(request, "replay", context, status=status)


def _plan(run: Run, location: str) -> ReplayPlan:
    try:
        with reading():
            return operations.plan_replay(run.id, location)
    except EntryNotFoundError as error:
        raise Http404(str(error)) from error


def _replay(request: HttpRequest, run: Run, location: str, given: dict[str, Any]) -> str:
    in_place = given["in_place"]
    with action_page.refusals(), acting_as(access.actor_of(request), reason=given["reason"]):
        return operations.replay(
            run.id,
            location,
            in_place=in_place,
            plan_hash=given["plan_hash"],
            as_id=None if in_place else given["token"],
        ).id


def _parts(plan: ReplayPlan) -> list[tuple[str, str, list[str], int]]:
    """Return the parts of the preview: a CSS word, a title, locations, and how many more there are."""
    returned = [f"{each.queue} (received by {display_location(each.wait)})" for each in plan.messages]
    parts = [
        ("again", "Steps that run again", [display_location(each) for each in plan.reruns]),
        ("again", "Messages that are sent again", [display_location(each) for each in plan.resends]),
        ("back", "Messages that return to the queue", returned),
        (
            "grave",
            "Done, with a rollback handler that is not run",
            [display_location(each) for each in plan.not_compensated],
        ),
        ("gone", "All records that go", [display_location(each) for each in plan.removed]),
        ("stays", "Branches beside it that stay", [display_location(each) for each in plan.siblings]),
        ("stays", "Records that stay", [display_location(each) for each in plan.kept]),
    ]
    return [(look, title, names[:_SHOWN], max(0, len(names) - _SHOWN)) for look, title, names in parts if names]
