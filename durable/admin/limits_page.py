"""The limits and their rates: a page of all, and one of each with who holds slots and who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.core.limits.rates import SECONDS, LimitClosing
from durable.inspection.humanize import span, thousands
from durable.inspection.limits import (
    LimitKeySummary,
    LimitSummary,
    RateKeySummary,
    RateSummary,
    list_limits,
    list_rates,
    reservations_of,
    slots_of,
)
from durable.models import Reservation, Slot


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


def rate_rows(admin: AdminPages, rate: RateSummary) -> list[ShownRate]:
    """Return a row for each key of a rate, or one for a rate without keys."""
    return [_rate_row(admin, rate, key) for key in rate.keys] or [_rate_row(admin, rate, None)]


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


def shown_rate(admin: AdminPages, request: HttpRequest, rate: RateSummary, now: datetime) -> dict[str, Any]:
    """Return the page data of a limit's rate."""
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


def show_rate(admin: AdminPages, request: HttpRequest, rate: RateSummary, now: datetime) -> HttpResponse:
    """Show a limit that has only a rate."""
    return admin.page(request, "limit", {"title": rate.name, "now": now, **shown_rate(admin, request, rate, now)})


def rate_of(name: str) -> RateSummary:
    """Return the rate of a limit without its keys. Raises Http404."""
    found = list_rates(pages.now(), name, with_keys=False)
    if not found:
        raise Http404(
            gettext('There is no limit "%(limit)s" with a rate: one appears when an attempt first wants units of it.')
            % {"limit": name}
        )
    return found[0]


def _rate_row(admin: AdminPages, rate: RateSummary, key: RateKeySummary | None) -> ShownRate:
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


_MOST: Final = 999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownKey:
    """A key of a limit as pages show it. `oldest` is how long the first in its line has waited, in words."""

    limit: LimitSummary
    key: LimitKeySummary | None
    url: str
    oldest: str
    tint: str
    word: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSlot:
    """A slot as the page of its limit shows it: the run, and how long it has held the slot or waited."""

    slot: Slot
    url: str
    span: str


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the limits, a row for each key."""
    now = pages.now()
    rows = [row for limit in list_limits() for row in _rows(admin, limit, now)]
    rates = [row for rate in list_rates(now) for row in rate_rows(admin, rate)]
    return admin.page(request, "limits", {"title": _("Limits"), "now": now, "rows": rows, "rates": rates})


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one limit and, for a key given as `?key=`, who holds its slots and who waits."""
    now, name = pages.now(), as_id(key)
    found, rates = list_limits(name), list_rates(now, name)
    if rates and not found:
        return show_rate(admin, request, rates[0], now)
    limit = _the_only(found, name)
    chosen = request.GET.get("key", limit.keys[0].key if limit.keys else "")
    held, waiting = slots_of(limit.name, chosen)
    context = {
        "title": limit.name,
        "now": now,
        "limit": limit,
        "rows": _rows(admin, limit, now),
        "key": chosen,
        "held": [_slot(admin, each, now) for each in held],
        "waiting": [_slot(admin, each, now) for each in waiting],
        "set_url": admin.url("limit_act", limit.name, "set"),
        "take_back_url": admin.url("limit_act", limit.name, "take-back"),
        "may_change": access.may(request, "change_limit"),
        **(shown_rate(admin, request, rates[0], now) if rates else {}),
    }
    return admin.page(request, "limit", context)


def number_of(name: str) -> LimitSummary:
    """Return the limit without its keys. Raises Http404."""
    return _the_only(list_limits(name, with_keys=False), name)


def _the_only(found: Sequence[LimitSummary], name: str) -> LimitSummary:
    if not found:
        raise Http404(
            gettext('There is no limit "%(limit)s": one appears when a run first wants a slot of it.') % {"limit": name}
        )
    return found[0]


def _rows(admin: AdminPages, limit: LimitSummary, now: datetime) -> list[ShownKey]:
    url = admin.url("limit", limit.name)
    if not limit.keys:
        return [ShownKey(limit=limit, key=None, url=url, oldest="", tint="durable-idle", word=_("free"))]
    return [_limit_row(limit, each, url, now) for each in limit.keys]


def _limit_row(limit: LimitSummary, key: LimitKeySummary, url: str, now: datetime) -> ShownKey:
    if key.waiting:
        tint, word = "wait", _("runs wait")
    elif key.held >= limit.at_once:
        tint, word = "run", _("full")
    else:
        tint, word = "good", _("in use")
    oldest = "" if key.oldest_at is None else span(max(0.0, (now - key.oldest_at).total_seconds()))
    return ShownKey(limit=limit, key=key, url=url, oldest=oldest, tint=f"durable-{tint}", word=word)


def _slot(admin: AdminPages, slot: Slot, now: datetime) -> ShownSlot:
    since = max(0.0, (now - slot.since).total_seconds())
    return ShownSlot(slot=slot, url=admin.url("change", slot.run_id), span=span(since))
