"""The page of a verb on a named thing (queue, limit, schedule ...): it describes the effect and asks for a reason; a
POST applies the verb once.

The verbs are those of `durable.operations.catalogue`. Each subject adds its own page data and revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable import marks
from durable.admin import action_page, limits_page, pages, schedules_page
from durable.admin.action_page import attempt
from durable.admin.forms import ActForm, form_of, name_of
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.core.records import HoldKind
from durable.inspection.limits import own_closing_of
from durable.inspection.queues import find_hold
from durable.inspection.wording import command
from durable.operations import catalogue, holds, limits, rates
from durable.operations.catalogue import DATABASE, LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW
from durable.operations.schedules import verbs as schedules
from durable.operations.verbs import Subject, Verb

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The subject of a verb, as the operator sees it now.

    `expected` is its revision, `initial` has values of fields, and `context` is the page's data.
    """

    expected: str
    initial: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The pages of a kind of subject: of a single one, and of all with its title. `see` raises Http404 for an unknown
    name.
    """

    page: str
    pages: str
    title: StrPromise
    see: Callable[[HttpRequest, Verb, str], Seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """Special parts of a verb: its form, `options`, which converts the form to options of the verb, and words for the
    result.

    `plan` returns the text to show before the verb is applied, "" if it was shown already.
    """

    form: type[ActForm] | None = None
    options: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    told: Callable[[Any], str] | None = None
    plan: Callable[[str, forms.Form], str] | None = None


def _see_hold(kind: HoldKind) -> Callable[[HttpRequest, Verb, str], Seen]:
    def see(_request: HttpRequest, _verb: Verb, name: str) -> Seen:
        hold = find_hold(kind, name)
        return Seen(expected=holds.revision_of(hold), context={"hold": hold})

    return see


def _see_limit(_request: HttpRequest, _verb: Verb, name: str) -> Seen:
    limit = limits_page.number_of(name)
    return Seen(
        expected=limits.revision_of(limit.at_once), initial={"at_once": limit.at_once}, context={"limit": limit}
    )


def _see_rate(request: HttpRequest, verb: Verb, name: str) -> Seen:
    rate, key = limits_page.rate_of(name), request.GET.get("key", "")
    if any(each.name == "key" for each in verb.options):
        expected = rates.closing_revision_of(own_closing_of(name, key, pages.now()))
    else:
        expected = rates.rate_revision_of(rate.rate)
    initial = {"rate": rate.rate.text, "burst": rate.rate.burst, "key": key, "duration": "10 minutes"}
    return Seen(expected=expected, initial=initial, context={"rate": rate})


def _see_schedule(request: HttpRequest, verb: Verb, name: str) -> Seen:
    row = schedules_page.find(name).schedule
    initial = schedules_page.initial(verb.action, request, row)
    return Seen(expected=schedules.revision_of(row), initial=initial)


def _see_database(_request: HttpRequest, _verb: Verb, name: str) -> Seen:
    row = marks.look().row
    if row is None or row.name != name:
        raise Http404(gettext('This database does not have the name "%(name)s".') % {"name": name[:64]})
    return Seen(expected=marks.revision_of(row), initial={"how": "hold"})


_PLACES: Final[Mapping[Subject, Place]] = {
    QUEUE: Place(page="queue", pages="queues", title=_("Queues"), see=_see_hold(HoldKind.QUEUE)),
    WORKFLOW: Place(page="workflow", pages="workflows", title=_("Workflows"), see=_see_hold(HoldKind.WORKFLOW)),
    LIMIT: Place(page="limit", pages="limits", title=_("Limits"), see=_see_limit),
    RATE: Place(page="limit", pages="limits", title=_("Limits"), see=_see_rate),
    SCHEDULE: Place(page="schedule", pages="schedules", title=_("Schedules"), see=_see_schedule),
    DATABASE: Place(page="database", pages="databases", title=_("Database"), see=_see_database),
}
_SPECIAL: Final[Mapping[str, Special]] = {
    "run_schedule": Special(told=schedules_page.told_of_tick),
    "backfill_schedule": Special(
        form=schedules_page.BackfillForm,
        options=lambda given: {"since": given["since"], "until": given["until"]},
        told=schedules_page.told_of_ticks,
        plan=schedules_page.plan,
    ),
    "edit_schedule": Special(form=schedules_page.EditScheduleForm, options=schedules_page.edited),
}


def page_of(*subjects: Subject) -> Callable[[AdminPages, HttpRequest, str, str], HttpResponse]:
    """Return the view for the verbs on these subjects."""
    verbs = {each.word: each for each in catalogue.VERBS if each.on in subjects}

    def show(admin: AdminPages, request: HttpRequest, key: str, name: str) -> HttpResponse:
        """Show the page of a verb, or apply it."""
        verb = verbs.get(name)
        if verb is None:
            raise Http404(action_page.no_verb(name, verbs))
        action_page.admit(request, verb.action, "")
        return _answer(admin, request, verb, as_id(key))

    return show


def _answer(admin: AdminPages, request: HttpRequest, verb: Verb, of: str) -> HttpResponse:
    place, special = _PLACES[verb.on], _SPECIAL.get(verb.action, Special())
    seen = place.see(request, verb, of)
    form = (special.form or form_of(verb))(pages.posted(request), initial=dict(seen.initial))

    def act(given: dict[str, Any]) -> tuple[str, str]:
        planned = special.plan(of, form) if special.plan is not None else ""
        return planned, "" if planned else _applied(request, verb, special, of, given)

    tried = attempt(form, act)
    planned, done = tried.result or ("", "")
    if done:
        messages.success(request, done)
        return HttpResponseRedirect(admin.url(place.pages) if verb.is_grave else admin.url(place.page, of))
    if tried.problem:
        seen = place.see(request, verb, of)
    context = {
        "title": gettext("%(verb)s: %(of)s") % {"verb": verb.title, "of": of},
        "verb": verb,
        "of": of,
        "form": form,
        "problem": tried.problem,
        "planned": planned,
        "expected": seen.expected,
        "back": admin.url(place.page, of),
        "all_url": admin.url(place.pages),
        "all_title": place.title,
        "command": _command(request, verb, of, seen),
        **seen.context,
    }
    return admin.page(request, "verb", context, status=tried.status)


def _applied(request: HttpRequest, verb: Verb, special: Special, of: str, given: dict[str, Any]) -> str:
    """Apply the verb and return the result in words. Raises Refusal."""
    if special.options is not None:
        options = special.options(given)
    else:
        found = {each.name: (each.default, given[name_of(each)]) for each in verb.options}
        options = {name: default if value == "" else value for name, (default, value) in found.items()}
    if "key" in options and options["key"] != request.GET.get("key", ""):
        given = {**given, "expected": ""}  # of another key than the page was made for
    with action_page.acting(request, given):
        result = verb.call(of, **options)
    return special.told(result) if special.told is not None else str(verb.done)


def _command(request: HttpRequest, verb: Verb, of: str, seen: Seen) -> str:
    """Return the shell command with the required options, and those given in the address."""
    required = [str(seen.initial[name_of(each)]) for each in verb.asked if each.is_required]
    given = {each.name: request.GET.get(each.name) for each in verb.options if not each.is_required}
    return command(verb.command, of, *required, **given)
