"""The verbs on a schedule: each has a page that describes its effect; a POST applies it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, pages, schedules_page
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.named_verbs import NamedVerb, answer
from durable.admin.schedule_forms import (
    BackfillForm,
    CreateScheduleForm,
    EditScheduleForm,
    OverrideForm,
    RunNowForm,
)
from durable.admin.url_keys import as_id
from durable.admin.verb_page import acting
from durable.conf import conf
from durable.core import registry
from durable.core.errors import PayloadError
from durable.models import Schedule
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of
from durable.schedules.rules import duration_text


def _pause(name: str, _given: dict[str, Any]) -> str:
    verbs.pause(name)
    return gettext("The schedule is paused.")


def _resume(name: str, _given: dict[str, Any]) -> str:
    verbs.resume(name)
    return gettext("The schedule is resumed.")


def _run(name: str, given: dict[str, Any]) -> str:
    tick = verbs.run_now(name, force=given["force"])
    if tick.outcome == "started":
        return gettext("The run %(run)s is started.") % {"run": tick.run_id}
    if tick.outcome == "waiting":
        return gettext("It begins when the earlier run has ended.")
    raise Refusal(gettext("Nothing was started: %(why)s") % {"why": tick.why}, 409)


def _backfill(name: str, given: dict[str, Any]) -> str:
    started = sum(bool(each.run_id) for each in verbs.backfill(name, given["since"], given["until"]))
    return ngettext("%(count)d run is started.", "%(count)d runs are started.", started) % {"count": started}


def _edit(name: str, given: dict[str, Any]) -> str:
    args, kwargs = given["arguments"] or (None, None)
    verbs.edit(name, args=args, kwargs=kwargs, no_window=given["window"] is None, **_options(given))
    return gettext("The schedule is changed.")


def _override(name: str, given: dict[str, Any]) -> str:
    verbs.override(name, given["rule"], zone=given["zone"] or None)
    return gettext("The rule is overridden until it is taken back.")


def _take_back(name: str, _given: dict[str, Any]) -> str:
    verbs.take_back(name)
    return gettext("The code's rule is in force again.")


def _delete(name: str, _given: dict[str, Any]) -> str:
    verbs.delete(name)
    return gettext("The schedule is deleted. Its runs stay.")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("rule", "zone", "queue", "overlap", "catch_up", "window", "jitter")}


_VERBS: Final = {
    "pause": NamedVerb(
        action=schedules_page.ACTIONS["pause"],
        title=_("Pause"),
        does=_("It starts nothing until it is resumed. Its runs go on. The moments of the pause are not made up for."),
        command="pause-schedule",
        call=_pause,
    ),
    "resume": NamedVerb(
        action=schedules_page.ACTIONS["resume"],
        title=_("Resume"),
        does=_("It ticks again, from its next moment on."),
        command="resume-schedule",
        call=_resume,
    ),
    "run": NamedVerb(
        action=schedules_page.ACTIONS["run"],
        title=_("Run now"),
        does=_("A tick for the present time. Its next moment stays as it is."),
        command="run-schedule",
        call=_run,
        form=RunNowForm,
    ),
    "backfill": NamedVerb(
        action=schedules_page.ACTIONS["backfill"],
        title=_("Backfill"),
        does=_("Start the run of each moment of a period in the past that has none. They begin at once."),
        command="backfill",
        call=_backfill,
        form=BackfillForm,
    ),
    "edit": NamedVerb(
        action=schedules_page.ACTIONS["edit"],
        title=_("Edit"),
        does=_("Its next moment follows from the new rule."),
        command="edit-schedule",
        call=_edit,
        form=EditScheduleForm,
    ),
    "override": NamedVerb(
        action=schedules_page.ACTIONS["override"],
        title=_("Override the rule"),
        does=_("This rule is in force instead of the code's, after deploys too, until it is taken back."),
        command="override-schedule",
        call=_override,
        form=OverrideForm,
    ),
    "take-back": NamedVerb(
        action=schedules_page.ACTIONS["take-back"],
        title=_("Take the override back"),
        does=_("The code's rule is in force again."),
        command="take-back-override",
        call=_take_back,
    ),
    "delete": NamedVerb(
        action=schedules_page.ACTIONS["delete"],
        title=_("Delete"),
        does=_("The schedule and its ticks are deleted for good. Its runs stay."),
        command="delete-schedule",
        call=_delete,
        is_grave=True,
    ),
}


def show(admin: AdminPages, request: HttpRequest, key: str, name: str) -> HttpResponse:
    """Show the page of a verb on a schedule, or apply the verb."""
    verb = _VERBS.get(name)
    if verb is None:
        raise Http404(action_page.no_verb(name, list(_VERBS)))
    action_page.admit(request, verb.action, "")
    of = as_id(key)
    row = schedules_page.find(of).schedule
    plan = (lambda form: _plan(of, form)) if name == "backfill" else None
    found = answer(request, verb, of, _initial(verb, request, row), plan)
    if found.done:
        messages.success(request, found.done)
        return HttpResponseRedirect(admin.url("schedules") if name == "delete" else admin.url("schedule", of))
    context = {**found.context(verb, of), "expected": verbs.revision_of(row), "back": admin.url("schedule", of)}
    return admin.page(request, "schedule_act", context, status=found.status)


def create(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the form of a new schedule, or create it."""
    action_page.admit(request, "create_schedule", "")
    is_posted = request.method == "POST"
    initial = {"zone": "UTC", "workflow": request.GET.get("workflow", "")[:200], "arguments": "{}"}
    form = CreateScheduleForm(request.POST if is_posted else None, initial=initial)
    problem, status = "", 200
    if is_posted:
        status = 422
        if form.is_valid():
            given = form.cleaned_data
            args, kwargs = given["arguments"] or ([], {})
            try:
                with acting(request, {**given, "expected": ""}):
                    verbs.create(given["name"], given["workflow"], args=args, kwargs=kwargs, **_options(given))
            except Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, gettext("The schedule is created."))
                return HttpResponseRedirect(admin.url("schedule", given["name"]))
    context = {
        "title": _("Create a schedule"),
        "now": pages.now(),
        "verb": {"title": _("Create a schedule"), "does": ""},
        "of": "",
        "form": form,
        "problem": problem,
        "back": admin.url("schedules"),
        "command": "",
        "workflows": sorted(each.name for each in registry.all()),
    }
    return admin.page(request, "schedule_act", context, status=status)


def _plan(of: str, form: forms.Form) -> str:
    """Return what a backfill would start, in words; "" if the page has shown the number already."""
    given = form.cleaned_data
    with action_page.refusals():
        found = verbs.plan_backfill(of, given["since"], given["until"])
    count = len(found.moments)
    if given["planned"] == count:
        return ""
    form.data = {**{name: form.data[name] for name in form.data}, "planned": str(count)}
    said = ngettext("%(count)d run would be started", "%(count)d runs would be started", count) % {"count": count}
    more = gettext("%(existing)d of the moments have a run already") % {"existing": found.existing}
    return f"{said}; {more}."


def _initial(verb: NamedVerb, request: HttpRequest, row: Schedule) -> dict[str, Any]:
    if verb.form is OverrideForm:
        return {"rule": row.rules.text, "zone": row.zone_in_force}
    if verb.form is BackfillForm:
        return {name: _moment(request.GET.get(name, "")) for name in ("since", "until")}
    if verb.form is not EditScheduleForm:
        return {}
    shown = {name: getattr(row, name) for name in ("rule", "zone", "overlap", "catch_up", "queue")}
    return {
        **shown,
        "window": "" if row.window is None else duration_text(row.window),
        "jitter": duration_text(row.jitter) if row.jitter else "",
        "arguments": _editable(row) if access.may(request, "view_payload") and not conf.REDACT else "",
    }


def _moment(text: str) -> datetime | None:
    """Return the moment that an address proposes for a field; None for none."""
    try:
        found = parse_datetime(text[:64])
    except ValueError:
        return None
    return found if found is not None and timezone.is_aware(found) else None


def _editable(row: Schedule) -> str:
    """Return the arguments as JSON; "" if JSON does not express them as they are."""
    try:
        args, kwargs = arguments_of(row)
        text = json.dumps(args or kwargs, indent=2)
        is_same = bool(json.loads(text) == (args or kwargs))
    except (PayloadError, TypeError, ValueError, RecursionError):
        return ""
    return text if is_same and not (args and kwargs) else ""
