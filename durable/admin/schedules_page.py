"""The schedules: a page of all, one of each with its ticks and verbs, and the forms and effects of those verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, pages
from durable.admin.action_page import Refusal
from durable.admin.forms import MAX_BODY, ActForm, checked, faults, json_editor, option_field, read_arguments
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.conf import conf
from durable.core import registry
from durable.core.duration import parse_duration
from durable.core.errors import PayloadError
from durable.inspection.payloads import payload, pretty
from durable.inspection.schedules import ScheduleSummary, clock_of_rule, find_schedule, list_schedules, ticks_of
from durable.inspection.wording import command
from durable.models import Schedule, Tick
from durable.operations.audit import needed_by
from durable.operations.catalogue import RULE, SCHEDULE, VERBS, ZONE
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of, place_of
from durable.schedules import CATCH_UPS, OVERLAPS, check_name
from durable.schedules.rules import MAX_NAME, duration_text

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

#: By state, the class of its colour and its words.
_STATES: Final[dict[str, tuple[str, StrPromise]]] = {
    "active": ("good", _("active")),
    "waiting": ("wait", _("a tick waits")),
    "paused": ("paused", _("paused")),
    "late": ("bad", _("late")),
    "gone": ("wait", _("no longer in the code")),
}
#: By outcome, the same.
_OUTCOMES: Final[dict[str, tuple[str, StrPromise]]] = {
    "started": ("good", _("started")),
    "waiting": ("wait", _("waiting")),
    "skipped": ("idle", _("skipped")),
    "merged": ("idle", _("merged")),
    "missed": ("bad", _("missed")),
    "refused": ("bad", _("refused")),
}
_KINDS: Final[dict[str, StrPromise]] = {
    "tick": _("at its moment"),
    "catch_up": _("made up for"),
    "run_now": _("run now"),
    "backfill": _("backfill"),
}
_SHOWN: Final = 200
_ON_A_PAGE: Final = 25  # schedules


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the schedules by name."""
    now = pages.now()
    run_url = admin.url_maker("change")
    found, after = list_schedules(now, after=request.GET.get("after", "")[:200], most=_ON_A_PAGE)
    context = {
        "title": _("Schedules"),
        "schedules": [_shown(admin, each, run_url) for each in found],
        "next_url": f"?{urlencode({'after': after})}" if after else "",
        "is_first": not request.GET.get("after"),
        "may_create": all(access.may(request, each) for each in needed_by("create_schedule")),
        "create_url": admin.url("schedule_create"),
    }
    return admin.page(request, "schedules", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one schedule with its ticks."""
    summary = find(as_id(key))
    row = summary.schedule
    may_see = access.may(request, "view_payload")
    run_url = admin.url_maker("change")
    context = {
        "title": row.name,
        "each": _shown(admin, summary, run_url),
        "row": row,
        "ticks": [_shown_tick(each, run_url) for each in ticks_of(row, _SHOWN)],
        "workflow_url": admin.url("workflow", row.workflow),
        "run_url": admin.url("change", row.last_run_id) if row.last_run_id else "",
        "arguments": pretty(payload(row.workflow, "input", row.input, place_of(row.name))) if may_see else None,
        "verbs": _verbs(admin, request, row),
        "command": command("schedules", row.name),
    }
    return admin.page(request, "schedule", context)


def find(name: str) -> ScheduleSummary:
    """Return the schedule of a URL. Raises Http404."""
    found = find_schedule(name, pages.now())
    if found is None:
        raise Http404(gettext('There is no schedule "%(schedule)s".') % {"schedule": name})
    return found


def _shown(admin: AdminPages, summary: ScheduleSummary, run_url: Callable[[str], str]) -> dict[str, Any]:
    """Return a schedule as pages show it; `dots` are its newest ticks, the oldest first.

    `moments` are its next ones, each with its time in the rule's zone ("" if that is the page's zone).
    """
    tint, word = _STATES[summary.state]
    zone = timezone.get_current_timezone()
    return {
        "summary": summary,
        "url": admin.url("schedule", summary.schedule.name),
        "tint": f"durable-{tint}",
        "word": word,
        "dots": [_shown_tick(each, run_url) for each in reversed(summary.ticks)],
        "moments": [(each, clock_of_rule(summary.schedule, each, zone)) for each in summary.moments],
    }


def _shown_tick(tick: Tick, run_url: Callable[[str], str]) -> dict[str, Any]:
    """Return a tick as pages show it; `label` has its moment, in the page's time zone, and its outcome."""
    tint, word = _OUTCOMES[tick.outcome]
    return {
        "tick": tick,
        "label": f"{timezone.localtime(tick.moment):%Y-%m-%d %H:%M:%S}: {word}",
        "tint": f"durable-{tint}",
        "word": word,
        "kind": _KINDS.get(tick.kind, tick.kind),
        "run_url": run_url(tick.run_id) if tick.run_id else "",
    }


def _verbs(admin: AdminPages, request: HttpRequest, row: Schedule) -> list[dict[str, Any]]:
    """Return the verbs that fit the schedule's state and the user's permissions, the most important first."""
    is_of_code = row.origin == Schedule.Origin.CODE
    fits = {
        "resume": row.paused and row.gone_at is None,
        "run": True,
        "pause": not row.paused,
        "backfill": True,
        "edit": not is_of_code,
        "override": is_of_code,
        "take-back": row.is_overridden,
        "delete": not is_of_code or row.gone_at is not None,
    }
    verbs = {each.word: each for each in VERBS if each.on == SCHEDULE}
    return [
        {
            "title": verbs[word].title,
            "url": admin.url("schedule_act", row.name, word),
            "kind": "default" if word == "resume" else "durable-grave" if verbs[word].is_grave else "",
        }
        for word, is_fitting in fits.items()
        if is_fitting and all(access.may(request, each) for each in needed_by(verbs[word].action))
    ]


class BackfillForm(ActForm):
    """A period; `planned` is the number of runs shown on the page."""

    since = forms.DateTimeField(
        label=_("From"), help_text=_("2026-05-01 12:30, in the zone of this page"), widget=forms.DateTimeInput()
    )
    until = forms.DateTimeField(label=_("To"), widget=forms.DateTimeInput())
    planned = forms.IntegerField(required=False, widget=forms.HiddenInput)

    field_order = ["since", "until", "reason"]


class EditScheduleForm(ActForm):
    """All options of a schedule, except its name and its workflow."""

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
    with faults():
        return parse_duration(text) if text.strip() else None


def edited(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an edit."""
    args, kwargs = given["arguments"] or (None, None)
    return {"args": args, "kwargs": kwargs, "no_window": given["window"] is None, **_options(given)}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("rule", "zone", "queue", "overlap", "catch_up", "window", "jitter")}


def told_of_tick(tick: Tick) -> str:
    """Return the outcome of a tick in words. Raises Refusal if it started nothing."""
    if tick.outcome == "started":
        return gettext("The run %(run)s is started.") % {"run": tick.run_id}
    if tick.outcome == "waiting" and tick.schedule.paused:
        return gettext("It begins when the schedule is resumed and the earlier run has ended.")
    if tick.outcome == "waiting":
        return gettext("It begins when the earlier run has ended.")
    raise Refusal(gettext("Nothing was started: %(why)s") % {"why": tick.why}, 409)


def told_of_ticks(ticks: Sequence[Tick]) -> str:
    """Say how many runs a backfill has started."""
    started = sum(bool(each.run_id) for each in ticks)
    return ngettext("%(count)d run is started.", "%(count)d runs are started.", started) % {"count": started}


def create(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the form of a new schedule, or create it."""
    action_page.admit(request, "create_schedule", "")
    initial = {"zone": "UTC", "workflow": request.GET.get("workflow", "")[:200], "arguments": "{}"}
    form = CreateScheduleForm(pages.posted(request), initial=initial)

    def act(given: dict[str, Any]) -> None:
        args, kwargs = given["arguments"] or ([], {})
        with action_page.acting(request, {**given, "expected": ""}):
            verbs.create(given["name"], given["workflow"], args=args, kwargs=kwargs, **_options(given))

    tried = action_page.attempt(form, act)
    if tried.is_done:
        messages.success(request, gettext("The schedule is created."))
        return HttpResponseRedirect(admin.url("schedule", form.cleaned_data["name"]))
    context = {
        "title": _("Create a schedule"),
        "verb": {"title": _("Create a schedule")},
        "form": form,
        "problem": tried.problem,
        "back": admin.url("schedules"),
        "all_url": admin.url("schedules"),
        "all_title": _("Schedules"),
        "workflows": sorted(each.name for each in registry.all()),
    }
    return admin.page(request, "verb", context, status=tried.status)


def plan(of: str, form: forms.Form) -> str:
    """Say what a backfill would start; "" if the page has already shown that number."""
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
    """Return the initial values of a verb's form."""
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
    """Return the moment that the address proposes for a field, or None."""
    try:
        found = parse_datetime(text[:64])
    except ValueError:
        return None
    return found if found is not None and timezone.is_aware(found) else None


def _editable(row: Schedule) -> str:
    """Return the arguments as JSON; "" if JSON cannot express them."""
    try:
        args, kwargs = arguments_of(row)
        text = json.dumps(args or kwargs, indent=2)
        is_same = bool(json.loads(text) == (args or kwargs))
    except (PayloadError, TypeError, ValueError, RecursionError):
        return ""
    return text if is_same and not (args and kwargs) else ""
