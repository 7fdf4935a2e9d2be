"""The confirmation of a hold: pause or resume a queue, hold or release the new starts of a workflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, pages
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.forms import ActForm
from durable.admin.url_keys import as_id
from durable.core.errors import HoldError
from durable.core.records import HoldKind
from durable.inspection import find_hold
from durable.inspection.refusals import told
from durable.inspection.shell_command import command
from durable.operations import holds
from durable.operations.audit import acting_as

__all__ = ["show_queue", "show_workflow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb:
    """A verb on a queue or on a workflow. `page` and `pages` are the names of the addresses to go back to."""

    action: str
    title: str | Promise
    does: str | Promise
    done: str | Promise
    call: Callable[[str], object]
    kind: HoldKind
    command: str
    page: str
    pages: str


_VERBS: Final = {
    "pause": _Verb(
        action="pause_queue",
        title=_("Pause the queue"),
        does=_("No worker takes its runs until it is resumed. Passes that are under way go on to their next park."),
        done=_("The queue is paused."),
        call=holds.pause_queue,
        kind=HoldKind.QUEUE,
        command="pause-queue",
        page="queue",
        pages="queues",
    ),
    "resume": _Verb(
        action="resume_queue",
        title=_("Resume the queue"),
        does=_("Workers take its runs again, at once."),
        done=_("The queue is resumed."),
        call=holds.resume_queue,
        kind=HoldKind.QUEUE,
        command="resume-queue",
        page="queue",
        pages="queues",
    ),
    "hold": _Verb(
        action="hold_starts",
        title=_("Hold new starts"),
        does=_("New runs are accepted and wait, paused, until the workflow is released. Runs that exist go on."),
        done=_("New starts are held."),
        call=holds.hold_starts,
        kind=HoldKind.WORKFLOW,
        command="hold",
        page="workflow",
        pages="workflows",
    ),
    "release": _Verb(
        action="release_starts",
        title=_("Release new starts"),
        does=_("New runs start again. Those that the hold has paused are resumed, and no others."),
        done=_("New starts are released."),
        call=holds.release_starts,
        kind=HoldKind.WORKFLOW,
        command="release",
        page="workflow",
        pages="workflows",
    ),
}


def show_queue(admin: AdminPages, request: HttpRequest, key: str, name: str) -> HttpResponse:
    """Show the confirmation of a pause or a resume of a queue, or do it."""
    return _show(admin, request, as_id(key), name, HoldKind.QUEUE)


def show_workflow(admin: AdminPages, request: HttpRequest, key: str, name: str) -> HttpResponse:
    """Show the confirmation of a hold or a release of a workflow, or do it."""
    return _show(admin, request, as_id(key), name, HoldKind.WORKFLOW)


def _show(admin: AdminPages, request: HttpRequest, of: str, name: str, kind: HoldKind) -> HttpResponse:
    verb = _VERBS.get(name)
    if verb is None or verb.kind is not kind:
        names = [each for each, verb in _VERBS.items() if verb.kind is kind]
        raise Http404(action_page.no_verb(name, names))
    action_page.admit(request, verb.action, "")
    form, problem, status = ActForm(request.POST if request.method == "POST" else None), "", 200
    back = admin.url(verb.page, of)
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                _do(request, verb, of, form.cleaned_data)
            except Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, str(verb.done))
                return HttpResponseRedirect(back)
    hold = find_hold(kind, of)
    context: dict[str, Any] = {
        "title": gettext("%(verb)s: %(of)s") % {"verb": verb.title, "of": of},
        "now": pages.now(),
        "verb": verb,
        "of": of,
        "form": form,
        "problem": problem,
        "hold": hold,
        "expected": holds.revision_of(hold),
        "back": back,
        "all_url": admin.url(verb.pages),
        "command": command(verb.command, of),
    }
    return admin.page(request, "hold", context, status=status)


def _do(request: HttpRequest, verb: _Verb, of: str, given: dict[str, Any]) -> None:
    expected = given["expected"] or None
    with action_page.refusals(), acting_as(access.actor_of(request), reason=given["reason"], expected=expected):
        try:
            verb.call(of)
        except HoldError as error:
            raise Refusal(gettext("Nothing was done: %(why)s") % {"why": told(error)}, 409) from error
