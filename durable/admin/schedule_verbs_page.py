"""What verbs on schedules add to `durable.admin.verb_page`: the forms of a new and an edited one, and a backfill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, pages
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.forms import MAX_BODY, ActForm, checked, json_editor, option_field, read_arguments
from durable.conf import conf
from durable.core import registry
from durable.core.duration import parse_duration
from durable.core.errors import PayloadError
from durable.models import Schedule, Tick
from durable.operations.catalogue import RULE, ZONE
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of
from durable.schedules import CATCH_UPS, OVERLAPS, check_name
from durable.schedules.rules import MAX_NAME, duration_text


class BackfillForm(ActForm):
    """A period; `planned` is the number of runs that the page has shown."""

    since = forms.DateTimeField(
        label=_("From"), help_text=_("2026-05-01 12:30, in the zone of this page"), widget=forms.DateTimeInput()
    )
    until = forms.DateTimeField(label=_("To"), widget=forms.DateTimeInput())
    planned = forms.IntegerField(required=False, widget=forms.HiddenInput)

    field_order = ["since", "until", "reason"]


class EditScheduleForm(ActForm):
    """All that a schedule has, except its name and its workflow."""

    rule = option_field(RULE)
    zone = option_field(ZONE, is_required=True)
    overlap = forms.ChoiceField(
        choices=[(each, each) for each in OVERLAPS],
        label=_("Overlap"),
        help_text=_("If the run of an earlier tick has not ended."),
    )
    catch_up = forms.ChoiceField(
        choices=[(each, each) for each in CATCH_UPS],
        label=_("Catch up"),
        help_text=_("Which moments without a timer are made up for."),
    )
    window = forms.CharField(
        required=False,
        max_length=100,
        label=_("Window"),
        help_text=_("No moment longer ago than this is made up for: “12 hours”. Empty: any."),
    )
    jitter = forms.CharField(
        required=False,
        max_length=100,
        label=_("Jitter"),
        help_text=_("Each tick is put off by a part of this: “10 minutes”. Empty: none."),
    )
    queue = forms.CharField(required=False, max_length=200, label=_("Queue"), help_text=_("Empty: the workflow's own."))
    arguments = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_BODY,
        label=_("Arguments (JSON)"),
        help_text=_("Keywords as an object, or a list of positional arguments. Empty: those that it has."),
        widget=json_editor(4),
    )

    field_order = ["rule", "zone", "overlap", "catch_up", "window", "jitter", "queue", "arguments", "reason"]

    def clean_window(self) -> timedelta | None:
        """Return the window; None for an empty one. Raises ValidationError."""
        return _duration(str(self.cleaned_data["window"]))

    def clean_jitter(self) -> timedelta:
        """Return the jitter. Raises ValidationError."""
        return _duration(str(self.cleaned_data["jitter"])) or timedelta(0)

    def clean_arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Return the positional arguments and the keywords; None for an empty text. Raises ValidationError."""
        return None if not self.cleaned_data["arguments"].strip() else read_arguments(self.cleaned_data["arguments"])


class CreateScheduleForm(EditScheduleForm):
    """A new schedule."""

    name = forms.CharField(
        max_length=MAX_NAME, label=_("Name"), help_text=_("The ids of its runs begin with it: no “/”.")
    )
    workflow = forms.CharField(
        max_length=200,
        label=_("Workflow"),
        widget=forms.TextInput(attrs={"list": "known-workflow", "autocapitalize": "off", "spellcheck": "false"}),
    )

    field_order = ["name", "workflow", *EditScheduleForm.field_order]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["arguments"].help_text = _("Keywords as an object, or a list of positional arguments. Empty: none.")

    def clean_name(self) -> str:
        """Return the name. Raises ValidationError."""
        return checked(check_name, str(self.cleaned_data["name"]))


def _duration(text: str) -> timedelta | None:
    if not text.strip():
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise forms.ValidationError(str(error)) from None


def edited(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an edit."""
    args, kwargs = given["arguments"] or (None, None)
    return {"args": args, "kwargs": kwargs, "no_window": given["window"] is None, **_options(given)}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("rule", "zone", "queue", "overlap", "catch_up", "window", "jitter")}


def told_of_tick(tick: Tick) -> str:
    """Return what became of a tick, in words. Raises Refusal if it started nothing."""
    if tick.outcome == "started":
        return gettext("The run %(run)s is started.") % {"run": tick.run_id}
    if tick.outcome == "waiting":
        return gettext("It begins when the earlier run has ended.")
    raise Refusal(gettext("Nothing was started: %(why)s") % {"why": tick.why}, 409)


def told_of_ticks(ticks: Sequence[Tick]) -> str:
    """Return how many runs a backfill has started, in words."""
    started = sum(bool(each.run_id) for each in ticks)
    return ngettext("%(count)d run is started.", "%(count)d runs are started.", started) % {"count": started}


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
                with action_page.acting(request, {**given, "expected": ""}):
                    verbs.create(given["name"], given["workflow"], args=args, kwargs=kwargs, **_options(given))
            except Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, gettext("The schedule is created."))
                return HttpResponseRedirect(admin.url("schedule", given["name"]))
    context = {
        "title": _("Create a schedule"),
        "now": pages.now(),
        "verb": {"title": _("Create a schedule")},
        "form": form,
        "problem": problem,
        "back": admin.url("schedules"),
        "all_url": admin.url("schedules"),
        "all_title": _("Schedules"),
        "workflows": sorted(each.name for each in registry.all()),
    }
    return admin.page(request, "verb", context, status=status)


def plan(of: str, form: forms.Form) -> str:
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


def initial(action: str, request: HttpRequest, row: Schedule) -> dict[str, Any]:
    """Return the values with which the form of a verb begins."""
    if action == "override_schedule":
        return {"rule": row.rules.text, "zone": row.zone_in_force}
    if action == "backfill_schedule":
        return {name: _moment(request.GET.get(name, "")) for name in ("since", "until")}
    if action != "edit_schedule":
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
