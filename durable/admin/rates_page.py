"""The rates of limits on the pages of limits: what waits, what is closed, and the verbs that set, close and open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.base import AdminPages
from durable.core.rates import SECONDS, LimitClosing
from durable.inspection.humanize import thousands
from durable.inspection.limits import RateKeySummary, RateSummary, list_rates, reservations_of
from durable.models import Reservation


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


def rate_of(name: str) -> RateSummary:
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
