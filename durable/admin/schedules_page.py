"""The schedules: a page of all with their next moments and newest ticks, and one of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.base import AdminPages
from durable.admin.url_keys import as_id
from durable.inspection.payloads import payload, pretty
from durable.inspection.schedules import ScheduleSummary, clock_of_rule, find_schedule, list_schedules, ticks_of
from durable.inspection.wording import command
from durable.models import Schedule, Tick
from durable.operations.audit import needed_by
from durable.operations.catalogue import SCHEDULE, VERBS
from durable.operations.schedules.rows import place_of

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
#: By outcome, likewise.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTick:
    """A tick as pages show it; `label` is its moment on the clock of the page with what became of it."""

    tick: Tick
    label: str
    tint: str
    word: StrPromise | str
    kind: StrPromise | str
    run_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule:
    """A schedule as pages show it; `dots` are its newest ticks, oldest first.

    `moments` are its next ones, each with its time in the rule's zone, "" if the page's clock shows the same.
    """

    summary: ScheduleSummary
    url: str
    tint: str
    word: StrPromise
    dots: list[ShownTick]
    moments: list[tuple[datetime, str]]


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the schedules by name."""
    now = pages.now()
    run_url = admin.url_maker("change")
    found, after = list_schedules(now, after=request.GET.get("after", "")[:200], most=_ON_A_PAGE)
    context = {
        "title": _("Schedules"),
        "now": now,
        "schedules": [_shown(admin, each, run_url) for each in found],
        "next_url": f"?{urlencode({'after': after})}" if after else "",
        "is_first": not request.GET.get("after"),
        "may_create": all(access.may(request, each) for each in needed_by("create_schedule")),
        "create_url": admin.url("schedule_create"),
    }
    return admin.page(request, "schedules", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one schedule with its ticks."""
    now = pages.now()
    summary = find(as_id(key))
    row = summary.schedule
    may_see = access.may(request, "view_payload")
    run_url = admin.url_maker("change")
    context = {
        "title": row.name,
        "now": now,
        "each": _shown(admin, summary, run_url),
        "row": row,
        "ticks": [_shown_tick(each, run_url) for each in ticks_of(row, _SHOWN)],
        "workflow_url": admin.url("workflow", row.workflow),
        "run_url": admin.url("change", row.last_run_id) if row.last_run_id else "",
        "arguments": _arguments(row) if may_see else None,
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


def _shown(admin: AdminPages, summary: ScheduleSummary, run_url: Callable[[str], str]) -> ShownSchedule:
    tint, word = _STATES[summary.state]
    return ShownSchedule(
        summary=summary,
        url=admin.url("schedule", summary.schedule.name),
        tint=f"durable-{tint}",
        word=word,
        dots=[_shown_tick(each, run_url) for each in reversed(summary.ticks)],
        moments=[
            (each, clock_of_rule(summary.schedule, each, timezone.get_current_timezone())) for each in summary.moments
        ],
    )


def _shown_tick(tick: Tick, run_url: Callable[[str], str]) -> ShownTick:
    tint, word = _OUTCOMES[tick.outcome]
    return ShownTick(
        tick=tick,
        label=f"{timezone.localtime(tick.moment):%Y-%m-%d %H:%M:%S}: {word}",
        tint=f"durable-{tint}",
        word=word,
        kind=_KINDS.get(tick.kind, tick.kind),
        run_url=run_url(tick.run_id) if tick.run_id else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerb:
    """A verb that the user may use on a schedule."""

    title: StrPromise
    url: str
    kind: str


def _verbs(admin: AdminPages, request: HttpRequest, row: Schedule) -> list[ShownVerb]:
    """Return the verbs that fit the schedule's state and the user's permissions, in the order of their weight."""
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
        ShownVerb(
            title=verbs[word].title,
            url=admin.url("schedule_act", row.name, word),
            kind="default" if word == "resume" else "durable-grave" if verbs[word].is_grave else "",
        )
        for word, is_fitting in fits.items()
        if is_fitting and all(access.may(request, each) for each in needed_by(verbs[word].action))
    ]


def _arguments(row: Schedule) -> str:
    found = payload(row.workflow, "input", row.input, place_of(row.name))
    return pretty(found)
