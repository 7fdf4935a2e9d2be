"""The rates of limits on the pages of limits: what waits, what is closed, and the verbs that set, close and open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, action_page, pages
from durable.admin.action_page import Refusal
from durable.admin.base import AdminPages
from durable.admin.forms import ActForm
from durable.core.duration import later, parse_duration
from durable.core.errors import StaleLimitError
from durable.core.ids import MAX_ID
from durable.core.rate_counts import SECONDS
from durable.core.rates import MOST_UNITS, LimitClosing, Rate
from durable.inspection.humanize import thousands
from durable.inspection.rates import RateKeySummary, RateSummary, list_rates, own_closing_of, reservations_of
from durable.inspection.refusals import told
from durable.inspection.shell_command import command
from durable.models import Reservation
from durable.operations import rates
from durable.operations.audit import acting_as


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRate:
    """A key of a limit's rate as pages show it."""

    rate: RateSummary
    key: RateKeySummary | None
    url: str
    act_url: Callable[[str], str]
    tint: str
    word: object
    closing: LimitClosing | None

    @property
    def close_url(self) -> str:
        """The page that closes the key."""
        return self.act_url("close")

    @property
    def open_url(self) -> str:
        """The page that opens the key."""
        return self.act_url("open")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReservation:
    """An attempt that waits for its moment, as the page of its limit shows it."""

    attempt: Reservation
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMinute:
    """The units of the last minute as a line.

    `points` are in a viewBox of 100 by 100. `scale` has the labels of the axis from the top.
    """

    counts: list[tuple[int, int]]
    points: str
    scale: list[str]
    total: int


class SetRateForm(ActForm):
    """The rate of a limit."""

    rate = forms.CharField(
        max_length=MAX_ID, label=_("Units in each period"), help_text=_('Such as "500/min" or "1/30 s".')
    )
    burst = forms.IntegerField(min_value=1, max_value=MOST_UNITS, initial=1, label=_("Units at once after a pause"))

    def clean(self) -> dict[str, Any]:
        """Refuse a text that is no rate."""
        given = super().clean() or self.cleaned_data
        if "rate" in given and "burst" in given:
            try:
                Rate.of(given["rate"], given["burst"])
            except ValueError as error:
                self.add_error("rate", str(error))
        return given


class OpenForm(ActForm):
    """The key of a limit that is to be opened."""

    key = forms.CharField(max_length=MAX_ID, required=False, label=_("Key"), help_text=_("Empty: all keys."))


class CloseForm(OpenForm):
    """For how long a limit is to be closed."""

    duration = forms.CharField(max_length=MAX_ID, label=_("For how long"), help_text=_('Such as "10 minutes".'))

    def clean_duration(self) -> str:
        """Refuse a text that is no duration above zero."""
        given = str(self.cleaned_data["duration"])
        try:
            if not parse_duration(given):
                raise ValueError(gettext("a duration above 0"))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb:
    action: str
    title: str | Promise
    does: str | Promise
    done: str | Promise
    form: type[ActForm]
    call: Callable[[str, dict[str, Any]], None]
    is_about_rate: bool


def _close(name: str, given: dict[str, Any]) -> None:
    until = later(pages.now(), parse_duration(given["duration"]), "a closing")
    rates.close_limit(name, until, key=given["key"])


RATE_VERBS: Final = {
    "set-rate": _Verb(
        action="set_rate",
        title=_("Set the rate"),
        does=_("Attempts that wait are given new moments, in their order. The rate survives deploys."),
        done=_("The rate is set."),
        form=SetRateForm,
        call=lambda name, given: rates.set_rate(name, given["rate"], given["burst"]),
        is_about_rate=True,
    ),
    "take-back-rate": _Verb(
        action="take_back_rate",
        title=_("Take the rate back"),
        does=_("The limit has the rate again that the code says."),
        done=_("The limit has the rate that the code says."),
        form=ActForm,
        call=lambda name, _given: rates.take_back_rate(name),
        is_about_rate=True,
    ),
    "close": _Verb(
        action="close_limit",
        title=_("Close"),
        does=_("Nothing begins before the limit is open again. Attempts that have begun go on."),
        done=_("The limit is closed."),
        form=CloseForm,
        call=_close,
        is_about_rate=False,
    ),
    "open": _Verb(
        action="open_limit",
        title=_("Open"),
        does=_("Attempts that wait begin at the rate of the limit."),
        done=_("The limit is open."),
        form=OpenForm,
        call=lambda name, given: rates.open_limit(name, key=given["key"]),
        is_about_rate=False,
    ),
}


def rate_rows(admin: AdminPages, rate: RateSummary) -> list[ShownRate]:
    """Return a row for each key of a rate, or one for a rate without keys."""
    return [_row(admin, rate, key) for key in rate.keys] or [_row(admin, rate, None)]


def last_minute(rate: RateSummary) -> LastMinute:
    """Return the line of the units that have begun in the last minute, of the keys of a rate together."""
    counts = rate.last_minute
    most = max(2, max(counts) + max(counts) % 2)
    width = 100 / (len(counts) - 1)
    points = " ".join(f"{number * width:.1f},{100 - 100 * count / most:.1f}" for number, count in enumerate(counts))
    seconds = [(len(counts) - number) * SECONDS for number in range(len(counts))]
    return LastMinute(
        counts=list(zip(seconds, counts, strict=True)),
        points=points,
        scale=[thousands(most), thousands(most // 2), "0"],
        total=sum(counts),
    )


def shown(admin: AdminPages, request: HttpRequest, rate: RateSummary, now: datetime) -> dict[str, Any]:
    """Return what the page of a limit shows of its rate."""
    chosen = request.GET.get("key", rate.keys[0].key if rate.keys else "")
    waiting = reservations_of(rate.name, chosen, now)
    return {
        "rate": rate,
        "rate_rows": rate_rows(admin, rate),
        "rate_key": chosen,
        "last_minute": last_minute(rate),
        "reserved": [ShownReservation(attempt=each, url=admin.url("change", each.run_id)) for each in waiting],
        "set_rate_url": admin.url("limit_act", rate.name, "set-rate"),
        "take_back_rate_url": admin.url("limit_act", rate.name, "take-back-rate"),
        "may_change": access.may(request, "change_limit"),
    }


def show(admin: AdminPages, request: HttpRequest, rate: RateSummary, now: datetime) -> HttpResponse:
    """Show a limit that has a rate alone."""
    return admin.page(request, "limit", {"title": rate.name, "now": now, **shown(admin, request, rate, now)})


def show_verb(admin: AdminPages, request: HttpRequest, limit: str, name: str) -> HttpResponse:
    """Show the form of a verb on a limit's rate, or do it."""
    verb = RATE_VERBS[name]
    action_page.admit(request, verb.action, "")
    rate, problem, status = _rate_of(limit), "", 200
    back, key = admin.url("limit", rate.name), request.GET.get("key", "")
    initial = {"rate": rate.rate.text, "burst": rate.rate.burst, "key": key, "duration": "10 minutes"}
    form = verb.form(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                _do(request, verb, rate.name, form.cleaned_data)
            except Refusal as refusal:
                problem, status = refusal.why, refusal.status
            else:
                messages.success(request, str(verb.done))
                return HttpResponseRedirect(back)
        rate = _rate_of(rate.name)
    if verb.is_about_rate:
        expected = rates.rate_revision_of(rate.rate)
    else:
        expected = rates.closing_revision_of(own_closing_of(rate.name, key, pages.now()))
    context: dict[str, Any] = {
        "title": gettext("%(verb)s: %(of)s") % {"verb": verb.title, "of": rate.name},
        "now": pages.now(),
        "verb": verb,
        "rate": rate,
        "form": form,
        "problem": problem,
        "expected": expected,
        "back": back,
        "all_url": admin.url("limits"),
        "command": _command(name, rate, key),
    }
    return admin.page(request, "rate_verb", context, status=status)


def _command(name: str, rate: RateSummary, key: str) -> str:
    given = {"set-rate": [rate.rate.text], "close": ["10 minutes"]}.get(name, [])
    if key and name in ("close", "open"):
        given += ["--key", key]
    return command({"close": "close-limit", "open": "open-limit"}.get(name, name), rate.name, *given)


def _do(request: HttpRequest, verb: _Verb, name: str, given: dict[str, Any]) -> None:
    expected = given["expected"] or None
    if "key" in given and given["key"] != request.GET.get("key", ""):
        expected = None  # of another key than the page was made for
    with action_page.refusals(), acting_as(access.actor_of(request), reason=given["reason"], expected=expected):
        try:
            verb.call(name, given)
        except StaleLimitError as error:
            raise Refusal(gettext("Nothing was done: %(why)s") % {"why": told(error)}, 409) from error


def _rate_of(name: str) -> RateSummary:
    """Return the rate of a limit without its keys. Raises Http404."""
    found = list_rates(pages.now(), name, with_keys=False)
    if not found:
        raise Http404(
            gettext('There is no limit "%(limit)s" with a rate: one appears when an attempt first wants units of it.')
            % {"limit": name}
        )
    return found[0]


def _row(admin: AdminPages, rate: RateSummary, key: RateKeySummary | None) -> ShownRate:
    closing = rate.closing or (None if key is None else key.closing)
    if closing is not None:
        tint, word = "bad", _("closed")
    elif key is not None and key.waiting:
        tint, word = "wait", _("runs wait")
    else:
        tint, word = "good", _("open")
    query = "" if key is None or not key.key else f"?{urlencode({'key': key.key})}"
    return ShownRate(
        rate=rate,
        key=key,
        url=admin.url("limit", rate.name) + query,
        act_url=lambda verb: admin.url("limit_act", rate.name, verb) + query,
        tint=f"durable-{tint}",
        word=word,
        closing=closing,
    )
