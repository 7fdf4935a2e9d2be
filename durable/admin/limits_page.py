"""The limits and their rates: a page of all, and one of each with who holds slots and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.core.limits.rates import SECONDS
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
from durable.models import Slot

_Row = dict[str, Any]  # a row of a table, for its template


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the limits, a row for each key."""
    now = pages.now()
    rows = [row for limit in list_limits() for row in _limit_rows(admin, limit, now)]
    rates = [row for rate in list_rates(now) for row in _rate_rows(admin, rate)]
    return admin.page(request, "limits", {"title": _("Limits"), "rows": rows, "rates": rates})


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one limit and, for a key given as `?key=`, who holds its slots and who waits."""
    now, name = pages.now(), as_id(key)
    limits, rates = list_limits(name), list_rates(now, name)
    context = {"title": name, "may_change": access.may(request, "change_limit")}
    if limits or not rates:
        limit = _the_only(limits, name)
        chosen = request.GET.get("key", limit.keys[0].key if limit.keys else "")
        held, waiting = slots_of(name, chosen)
        context |= {
            "limit": limit,
            "rows": _limit_rows(admin, limit, now),
            "key": chosen,
            "held": [_slot(admin, each, now) for each in held],
            "waiting": [_slot(admin, each, now) for each in waiting],
            "set_url": admin.url("limit_act", name, "set"),
            "take_back_url": admin.url("limit_act", name, "take-back"),
        }
    for rate in rates:
        chosen = request.GET.get("key", rate.keys[0].key if rate.keys else "")
        context |= {
            "rate": rate,
            "rate_rows": _rate_rows(admin, rate),
            "rate_key": chosen,
            "last_minute": _last_minute(rate.last_minute),
            "reserved": [
                {"attempt": each, "url": admin.url("change", each.run_id)}
                for each in reservations_of(name, chosen, now)
            ],
            "set_rate_url": admin.url("limit_act", name, "set-rate"),
            "take_back_rate_url": admin.url("limit_act", name, "take-back-rate"),
        }
    return admin.page(request, "limit", context)


def number_of(name: str) -> LimitSummary:
    """Return the limit without its keys. Raises Http404."""
    return _the_only(list_limits(name, with_keys=False), name)


def rate_of(name: str) -> RateSummary:
    """Return the rate of a limit without its keys. Raises Http404."""
    found = list_rates(pages.now(), name, with_keys=False)
    if not found:
        raise Http404(
            gettext('There is no limit "%(limit)s" with a rate: one appears when an attempt first wants units of it.')
            % {"limit": name}
        )
    return found[0]


def _the_only(found: Sequence[LimitSummary], name: str) -> LimitSummary:
    if not found:
        raise Http404(
            gettext('There is no limit "%(limit)s": one appears when a run first wants a slot of it.') % {"limit": name}
        )
    return found[0]


def _limit_rows(admin: AdminPages, limit: LimitSummary, now: datetime) -> list[_Row]:
    """Return a row for each key, or one for a limit of which nothing is held."""
    url = admin.url("limit", limit.name)
    if not limit.keys:
        return [{"limit": limit, "key": None, "url": url, "oldest": "", "tint": "durable-idle", "word": _("free")}]
    return [{"limit": limit, "key": each, "url": url, **_state_of_key(limit, each, now)} for each in limit.keys]


def _state_of_key(limit: LimitSummary, key: LimitKeySummary, now: datetime) -> _Row:
    if key.waiting:
        tint, word = "wait", _("runs wait")
    elif key.held >= limit.at_once:
        tint, word = "run", _("full")
    else:
        tint, word = "good", _("in use")
    oldest = "" if key.oldest_at is None else span(max(0.0, (now - key.oldest_at).total_seconds()))
    return {"oldest": oldest, "tint": f"durable-{tint}", "word": word}


def _rate_rows(admin: AdminPages, rate: RateSummary) -> list[_Row]:
    """Return a row for each key of a rate, or one for a rate without keys."""
    return [_rate_row(admin, rate, key) for key in rate.keys or (None,)]


def _rate_row(admin: AdminPages, rate: RateSummary, key: RateKeySummary | None) -> _Row:
    closing = rate.closing or (None if key is None else key.closing)
    if closing is not None:
        tint, word = "bad", _("closed")
    elif key is not None and key.waiting:
        tint, word = "wait", _("runs wait")
    else:
        tint, word = "good", _("open")
    query = "" if key is None or not key.key else f"?{urlencode({'key': key.key})}"
    return {
        "rate": rate,
        "key": key,
        "url": admin.url("limit", rate.name) + query,
        "close_url": admin.url("limit_act", rate.name, "close") + query,
        "open_url": admin.url("limit_act", rate.name, "open") + query,
        "tint": f"durable-{tint}",
        "word": word,
        "closing": closing,
    }


def _last_minute(counts: Sequence[int]) -> dict[str, Any]:
    """Return the units of the last minute as a line in a viewBox of 100 by 100, with the labels of the axis."""
    most = max(2, max(counts) + max(counts) % 2)
    width = 100 / (len(counts) - 1)
    seconds = [(len(counts) - number) * SECONDS for number in range(len(counts))]
    return {
        "counts": list(zip(seconds, counts, strict=True)),
        "points": " ".join(
            f"{number * width:.1f},{100 - 100 * count / most:.1f}" for number, count in enumerate(counts)
        ),
        "scale": [thousands(most), thousands(most // 2), "0"],
        "total": sum(counts),
    }


def _slot(admin: AdminPages, slot: Slot, now: datetime) -> _Row:
    since = max(0.0, (now - slot.since).total_seconds())
    return {"slot": slot, "url": admin.url("change", slot.run_id), "span": span(since)}
