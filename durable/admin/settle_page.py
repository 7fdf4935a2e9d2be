"""Settling a step that waits for a person: was it done? The page has the facts and the three answers."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable.admin import access, action_page, pages
from durable.admin.forms import SettleForm
from durable.admin.pages import AdminPages
from durable.core.outcomes import ONCE, VERIFY
from durable.core.transitions import ALLOWED
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.held import HeldHere, held_of
from durable.inspection.payloads import redacted_error
from durable.inspection.reading import reading
from durable.inspection.wording import command, display_location
from durable.models import Run
from durable.operations.audit import PERMISSIONS, revision
from durable.operations.verbs import RUN_VERBS, possible_verbs

_VERB = RUN_VERBS["settle"]


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the question, or settle the step at `at`; without `at`, the first that waits."""
    action_page.admit(request, "settle", unquote(key))
    run = pages.find(request, key)
    form, location = SettleForm(pages.posted(request)), request.GET.get("at", "")

    def act(given: dict[str, Any]) -> None:
        with action_page.acting_on_runs(request, given["reason"], expected=given["expected"] or None):
            _VERB.call(run.id, location, **form.answer)

    tried = action_page.attempt(form, act)
    if tried.is_done:
        messages.success(request, _VERB.done)
        return HttpResponseRedirect(admin.url("change", run.id))
    if tried.problem:
        run = pages.find(request, key)
        form = SettleForm({**request.POST.dict(), "expected": revision(run)})
    with reading():
        waiting = held_of(run, with_payloads=access.may(request, "view_payload"))
        step = next((each for each in waiting if each.location == location or not location), None)
        context = _context(admin, request, run, step, location)
    context |= {
        "form": form,
        "problem": tried.problem,
        "others": [each for each in waiting if each is not step],
        "command": command("settle", run.id, location or (step.location if step else "LOCATION"), done="JSON"),
    }
    return admin.page(request, "settle", context, status=tried.status)


def _context(admin: AdminPages, request: HttpRequest, run: Run, step: HeldHere | None, location: str) -> dict[str, Any]:
    is_exhausted = step is not None and not step.is_unknown
    return {
        **action_page.asking_context(admin, request, run),
        "title": _("Was it done? Run %(run)s") % {"run": run.id},
        "verb": _VERB,
        "heading": _("Its attempts are used up") if is_exhausted else _("Was it done?"),
        "step": step,
        "is_exhausted": is_exhausted,
        "place": display_location(step.location if step else location),
        "location": step.location if step else location,
        "act_url": admin.url("act", run.id, "settle"),
        "step_url": admin.url("step", run.id),
        "is_possible": step is not None and run.state in ALLOWED["settle"],
        **({} if step is None else _facts(admin, request, run, step)),
    }


def _facts(admin: AdminPages, request: HttpRequest, run: Run, step: HeldHere) -> dict[str, Any]:
    """Return what is known of the step beside its last attempt: how that ended, what verify says, and its key; and the
    address of the recovery, if that would not be refused.
    """
    detail = read_entry_detail(run, step.location, with_payloads=False)
    error = None if detail is None else detail.entry.metadata.error
    data: dict[str, Any] = {} if detail is None else detail.entry.data
    can_help = "verify" in data.get(ONCE, {}) or not step.is_unknown
    may_recover = can_help and "recover" in possible_verbs(run) and access.may(request, PERMISSIONS["recover"])
    ended, verify, said = redacted_error(run.workflow, error).partition(VERIFY)
    return {
        "ended": ended if verify else step.error,
        "said": said,
        "facts": [] if detail is None else detail.facts,
        "recover_url": admin.url("act", run.id, "recover") if may_recover else "",
    }
