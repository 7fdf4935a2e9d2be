"""The confirmation of a hold: pause or resume a queue, hold or release the new starts of a workflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _

from durable.admin import action_page
from durable.admin.base import AdminPages
from durable.admin.named_verbs import NamedVerb, answer
from durable.admin.url_keys import as_id
from durable.core.records import HoldKind
from durable.inspection import find_hold
from durable.operations import holds

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb(NamedVerb):
    """A verb on a queue or on a workflow."""

    kind: HoldKind


def _doing(call: Callable[[str], object], done: StrPromise) -> Callable[[str, dict[str, Any]], str]:
    """Return a function that calls `call` with the name, and says `done`."""

    def do(name: str, _given: dict[str, Any]) -> str:
        call(name)
        return str(done)

    return do


#: The names of the pages of one, and of all.
_PAGES: Final = {HoldKind.QUEUE: ("queue", "queues"), HoldKind.WORKFLOW: ("workflow", "workflows")}
_VERBS: Final = {
    "pause": _Verb(
        action="pause_queue",
        title=_("Pause the queue"),
        does=_("No worker takes its runs until it is resumed. Passes that are under way go on to their next park."),
        call=_doing(holds.pause_queue, _("The queue is paused.")),
        kind=HoldKind.QUEUE,
        command="pause-queue",
    ),
    "resume": _Verb(
        action="resume_queue",
        title=_("Resume the queue"),
        does=_("Workers take its runs again, at once."),
        call=_doing(holds.resume_queue, _("The queue is resumed.")),
        kind=HoldKind.QUEUE,
        command="resume-queue",
    ),
    "hold": _Verb(
        action="hold_starts",
        title=_("Hold new starts"),
        does=_("New runs are accepted and wait, paused, until the workflow is released. Runs that exist go on."),
        call=_doing(holds.hold_starts, _("New starts are held.")),
        kind=HoldKind.WORKFLOW,
        command="hold",
    ),
    "release": _Verb(
        action="release_starts",
        title=_("Release new starts"),
        does=_("New runs start again. Those that the hold has paused are resumed, and no others."),
        call=_doing(holds.release_starts, _("New starts are released.")),
        kind=HoldKind.WORKFLOW,
        command="release",
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
    one, every = _PAGES[kind]
    found, back = answer(request, verb, of), admin.url(one, of)
    if found.done:
        messages.success(request, found.done)
        return HttpResponseRedirect(back)
    hold = find_hold(kind, of)
    context = {
        **found.context(verb, of),
        "hold": hold,
        "expected": holds.revision_of(hold),
        "back": back,
        "all_url": admin.url(every),
        "is_queue": kind is HoldKind.QUEUE,
    }
    return admin.page(request, "hold", context, status=found.status)
