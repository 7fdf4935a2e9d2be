"""A verb on something that has a name: a page that describes the effect and asks for a reason; a POST applies it once.

The verbs are those of `durable.operations.catalogue`. A subject adds what its page shows, and what the operator saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, limits_page, pages, rates_page
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.forms import ActForm
from durable.admin.url_keys import as_id
from durable.core.duration import later, parse_duration
from durable.core.errors import HoldError, ScheduleError, StaleLimitError
from durable.core.ids import MAX_ID
from durable.core.records import HoldKind
from durable.core.registry import UnknownWorkflowError
from durable.inspection import find_hold
from durable.inspection.rates import own_closing_of
from durable.inspection.refusals import told
from durable.inspection.shell_command import command
from durable.operations import catalogue, holds, limits, rates
from durable.operations.audit import acting_as
from durable.operations.catalogue import LIMIT, QUEUE, RATE, WORKFLOW, Number, Option, Subject, Until, Verb

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a verb is about, as the operator sees it now.

    `expected` is its revision, `initial` has values of fields, and `context` what the page shows.
    """

    expected: str
    initial: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The pages of a subject: of one and of all, with the latter's title. `see` raises Http404 for an unknown name."""

    page: str
    pages: str
    title: StrPromise
    see: Callable[[HttpRequest, Verb, str], Seen]


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
    rate, key = rates_page.rate_of(name), request.GET.get("key", "")
    if any(each.name == "key" for each in verb.options):
        expected = rates.closing_revision_of(own_closing_of(name, key, pages.now()))
    else:
        expected = rates.rate_revision_of(rate.rate)
    initial = {"rate": rate.rate.text, "burst": rate.rate.burst, "key": key, "duration": "10 minutes"}
    return Seen(expected=expected, initial=initial, context={"rate": rate})


_PLACES: Final[Mapping[Subject, Place]] = {
    QUEUE: Place(page="queue", pages="queues", title=_("Queues"), see=_see_hold(HoldKind.QUEUE)),
    WORKFLOW: Place(page="workflow", pages="workflows", title=_("Workflows"), see=_see_hold(HoldKind.WORKFLOW)),
    LIMIT: Place(page="limit", pages="limits", title=_("Limits"), see=_see_limit),
    RATE: Place(page="limit", pages="limits", title=_("Limits"), see=_see_rate),
}


def page_of(*subjects: Subject) -> Callable[[AdminPages, HttpRequest, str, str], HttpResponse]:
    """Return the view of the verbs on these subjects, whose addresses are alike."""
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
    place, is_posted = _PLACES[verb.on], request.method == "POST"
    seen, problem, status = place.see(request, verb, of), "", 422 if is_posted else 200
    form = form_of(verb)(request.POST if is_posted else None, initial=dict(seen.initial))
    if is_posted and form.is_valid():
        try:
            done = _applied(request, verb, of, form.cleaned_data)
        except Refusal as refusal:
            problem, status = refusal.why, refusal.status
            seen = place.see(request, verb, of)
        else:
            messages.success(request, done)
            return HttpResponseRedirect(admin.url(place.page, of))
    context = {
        "title": gettext("%(verb)s: %(of)s") % {"verb": verb.title, "of": of},
        "now": pages.now(),
        "verb": verb,
        "of": of,
        "form": form,
        "problem": problem,
        "expected": seen.expected,
        "back": admin.url(place.page, of),
        "all_url": admin.url(place.pages),
        "all_title": place.title,
        "command": _command(request, verb, of, seen),
        **seen.context,
    }
    return admin.page(request, "verb", context, status=status)


@contextmanager
def acting(request: HttpRequest, given: Mapping[str, Any]) -> Iterator[None]:
    """Act as the user for the reason of the form. Raises Refusal, and what `action_page.refusals` raises."""
    as_seen = acting_as(access.actor_of(request), reason=given["reason"], expected=given["expected"] or None)
    with action_page.refusals(), as_seen:
        try:
            yield
        except (HoldError, ScheduleError, StaleLimitError, UnknownWorkflowError) as error:
            raise Refusal(gettext("Nothing was done: %(why)s") % {"why": told(error)}, 409) from error
        except TypeError as error:
            raise Refusal(gettext("Nothing was done: %(why)s") % {"why": error}, 422) from error


def _applied(request: HttpRequest, verb: Verb, of: str, given: dict[str, Any]) -> str:
    """Apply the verb, and return what was done in words. Raises Refusal."""
    options = {each.name: given[_name_of(each)] for each in verb.options}
    if "key" in options and options["key"] != request.GET.get("key", ""):
        given = {**given, "expected": ""}  # of another key than the page was made for
    with acting(request, given):
        verb.call(of, **options)
    return str(verb.done)


def _command(request: HttpRequest, verb: Verb, of: str, seen: Seen) -> str:
    """Return the shell command with what has to be given, and with what the address gives."""
    required = [str(seen.initial[_name_of(each)]) for each in verb.asked if each.is_required]
    given = {each.name: request.GET.get(each.name) for each in verb.options if not each.is_required}
    return command(verb.command, of, *required, **given)


# -- the form of a verb


class _Duration(forms.CharField):
    """For how long; the value is the moment when it is over."""

    def clean(self, value: Any) -> Any:
        """Return the moment. Raises ValidationError for what is no duration above zero."""
        given = super().clean(value)
        try:
            if not parse_duration(given):
                raise ValueError(gettext("a duration above 0"))
            return later(pages.now(), parse_duration(given), "a closing")
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


class _VerbForm(ActForm):
    """The options of a verb, and the reason."""

    verb: Verb

    def clean(self) -> dict[str, Any]:
        """Mark the first option if the options do not fit."""
        given = super().clean() or self.cleaned_data
        names = [_name_of(each) for each in self.verb.options]
        if self.verb.check is not None and all(each in given for each in names):
            try:
                self.verb.check(*(given[each] for each in names))
            except ValueError as error:
                self.add_error(names[0], str(error))
        return given


@cache
def form_of(verb: Verb) -> type[ActForm]:
    """Return the class of a verb's form."""
    fields: dict[str, Any] = {_name_of(each): _field(each) for each in verb.asked}
    return type("VerbForm", (_VerbForm,), {**fields, "verb": verb, "field_order": [*fields, "reason"]})


def _name_of(option: Option) -> str:
    return "duration" if isinstance(option, Until) else option.name


def _field(option: Option) -> forms.Field:
    said: dict[str, Any] = {"label": option.label, "help_text": option.help, "required": option.is_required}
    if isinstance(option, Number):
        return forms.IntegerField(min_value=option.least, max_value=option.most, **said | {"required": True})
    if isinstance(option, Until):
        return _Duration(max_length=MAX_ID, **said)
    return forms.CharField(max_length=MAX_ID, **said)
