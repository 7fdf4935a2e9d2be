"""The page of a bulk: how far it is, what it did, which runs it was refused for, and which have failed again."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from durable.admin import access, pages, sight
from durable.admin.base import AdminPages
from durable.admin.url_keys import as_id
from durable.core.records import ENDED
from durable.inspection.actions import possible_verbs
from durable.inspection.bulks import BulkSummary, failed_again, order_words, refusals
from durable.inspection.explain_states import explain
from durable.inspection.forks import failed_places
from durable.inspection.wording import command, verb_title
from durable.models.run import RunQuerySet
from durable.operations.audit import PERMISSIONS
from durable.operations.verbs import RUN_VERBS

_SHOWN: Final = 20  # runs that have failed again
_DECISIONS: Final = ("go_on", "stop_here")


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the whole page."""
    return admin.page(request, "bulk_result", _context(admin, request, _found(request, key)))


def live(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Return the part of the page that changes, or 304 if nothing has changed."""
    found = _found(request, key)
    etag = _etag(found)
    if pages.is_known(request, etag):
        return pages.unchanged(etag)
    return pages.tagged(admin.page(request, "_bulk_result", _context(admin, request, found)), etag)


def _found(request: HttpRequest, key: str) -> BulkSummary:
    """Return the bulk of a URL. Raises Http404."""
    bulk_id = as_id(key)
    found = sight.find_bulk(request, bulk_id)
    if found is None:
        raise Http404(_('There is no bulk "%(bulk)s". The audit log may have been pruned since.') % {"bulk": bulk_id})
    return found


def _context(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> dict[str, Any]:
    now = pages.now()
    title = str(RUN_VERBS[found.verb].title) if found.verb in RUN_VERBS else verb_title(found.verb)
    within = sight.within(request)
    again = failed_again(found.id, found.verb, within).defer("input", "output").order_by("pk")
    runs = list(again[:_SHOWN]) if found.again else []
    places = failed_places(runs)
    recover = {"verb": "recover", "bulk": found.id}
    has_order = found.order is not None and access.may(request, "view_payload")
    return {
        "title": _("%(verb)s: what came of it") % {"verb": title},
        "now": now,
        "bulk": found,
        "verb_title": title,
        "trouble": _trouble(found, now, within),
        "words": order_words(found.order, found.began_at) if has_order else "",
        "refusals": refusals(found.id),
        "failed": [(run, explain(run, now, within=within, place=places.get(run.id, "")).headline) for run in runs],
        "recover_url": "" if sight.is_limited() else f"{admin.url('bulk')}?{urlencode(recover)}",
        "decisions": _decisions(admin, request, found),
        "run_url": "" if found.run is None else admin.url("change", found.run.id),
        "verb_urls": _verbs(admin, request, found),
        "log_url": _log_url(admin, request, found.id),
        "live_url": admin.url("bulk_live", found.id),
        "etag": _etag(found),
        "command": command("bulk", found.id),
    }


def _trouble(found: BulkSummary, now: datetime, within: RunQuerySet | None) -> str:
    """Return what keeps the bulk's own run from going on, where that needs a person; "" else."""
    if found.run is None or found.run.state in ENDED or found.stopped is not None:
        return ""
    told = explain(found.run, now, within=within)
    return told.headline if told.needs_attention else ""


def _decisions(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> list[tuple[str, str]]:
    """Return the titles and the addresses of what can be done with a bulk that its canary has stopped."""
    if found.run is None or found.stopped is None or not access.may(request, PERMISSIONS["go_on"]):
        return []
    return [(str(RUN_VERBS[name].title), admin.url("act", found.run.id, name)) for name in _DECISIONS]


def _verbs(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> list[tuple[str, str, bool]]:
    """Return the other verbs that the bulk's run allows: title, address, and whether it is grave."""
    if found.run is None:
        return []
    names = [
        name
        for name in possible_verbs(found.run)
        if name in ("pause", "resume", "cancel") and access.may(request, PERMISSIONS[name])
    ]
    return [
        (str(RUN_VERBS[name].title), admin.url("act", found.run.id, name), RUN_VERBS[name].is_grave) for name in names
    ]


def _log_url(admin: AdminPages, request: HttpRequest, bulk_id: str) -> str:
    address = reverse("admin:durable_operatoraction_changelist", current_app=admin.admin_site.name)
    return f"{address}?{urlencode({'bulk': bulk_id})}" if access.may(request, "view_run") else ""


def _etag(found: BulkSummary) -> str:
    run = found.run
    state = "" if run is None else f"{run.state} {run.waiting_for} {run.wake_at}"
    return pages.etag_of(pages.now(), found.id, found.numbers, found.phase, state, found.was_stopped)
