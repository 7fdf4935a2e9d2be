"""The limits: a page of all, one of each with who holds its slots and who waits, and the verbs that set its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages, rates_page
from durable.admin.base import AdminPages
from durable.admin.rates_page import rate_rows
from durable.admin.url_keys import as_id
from durable.inspection.humanize import span
from durable.inspection.limits import LimitKeySummary, LimitSummary, list_limits, list_rates, slots_of
from durable.models import Slot

_MOST: Final = 999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownKey:
    """A key of a limit as pages show it. `oldest` is for how long the first in its line has waited, in words."""

    limit: LimitSummary
    key: LimitKeySummary | None
    url: str
    oldest: str
    tint: str
    word: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSlot:
    """A slot as the page of its limit shows it: the run, and for how long it holds the slot or waits."""

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
    """Show one limit, and of one key, given as `?key=`, who holds its slots and who waits."""
    now, name = pages.now(), as_id(key)
    found, rates = list_limits(name), list_rates(now, name)
    if rates and not found:
        return rates_page.show(admin, request, rates[0], now)
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
        **(rates_page.shown(admin, request, rates[0], now) if rates else {}),
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
    return [_row(limit, each, url, now) for each in limit.keys]


def _row(limit: LimitSummary, key: LimitKeySummary, url: str, now: datetime) -> ShownKey:
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
