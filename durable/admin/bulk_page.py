"""One verb on many runs: a page that shows their number and the first ten, and asks for a reason.

A large selection is processed in the background.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict

from durable.admin import access, action_page
from durable.admin.base import AdminPages
from durable.admin.forms import BulkForm, FilterForm
from durable.admin.verbs import BULK, VERBS
from durable.conf import conf
from durable.core.ids import new_id
from durable.inspection import Filtered, RunCriteria, parse_search, reading
from durable.models import Run
from durable.operations import bulk
from durable.operations.audit import acting_as

__all__ = ["show"]

_MOST_IDS = 500  # ids that one page can select


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the confirmation page, or apply the verb.

    The list posts the selection, and a link to the confirmation has it in its address. A POST with `confirmed` alone
    applies the verb.
    """
    given = request.POST if request.method == "POST" else request.GET
    if request.method != "POST" and "verb" not in given:
        return HttpResponseRedirect(admin.url("changelist"))
    name = given.get("verb", "")
    ids = given.getlist("id")[:_MOST_IDS]
    is_confirmed = request.method == "POST" and "confirmed" in given
    _deny(request, name if name in BULK else BULK[0], ids)
    if name not in BULK:
        return _again(admin, request, "Choose what to do with the runs first.")
    wanted = _wanted(given) if "all" in given else None
    if "all" in given and wanted is None:
        return _again(admin, request, "Nothing was done: the filter has a mistake. Correct it, and choose again.")
    selection = ids if wanted is None else Filtered(wanted)
    if not selection:
        return _again(admin, request, "Choose at least one run, or all that the filter finds.")
    verb = VERBS[name]
    form = BulkForm(request.POST if is_confirmed else None, initial={"token": new_id()})
    is_ticked = verb.option is not None and bool(given.get(verb.option.name))
    problem, status = "", 200
    if is_confirmed:
        status = 422
        if form.is_valid():
            try:
                return _do(admin, request, name, selection, form.cleaned_data, is_ticked=is_ticked)
            except action_page.Refusal as refusal:
                problem, status = refusal.why, refusal.status
    with reading():
        eligibility = bulk.eligible(name, selection)
    found = Run.objects.using(conf.DATABASE).only("id", "workflow", "state", "created_at").in_bulk(eligibility.shown)
    context = {
        "title": f"{verb.title}: {'all runs of a filter' if 'all' in given else 'runs'}",
        "verb": verb,
        "form": form,
        "problem": problem,
        "is_ticked": is_ticked,
        "eligibility": eligibility,
        "runs": [found[each] for each in eligibility.shown if each in found],
        "ids": ids,
        "is_all": "all" in given,
        "filter": given.get("filter", ""),
        "list_url": _list_url(admin, request),
        "at_once": bulk.AT_ONCE,
    }
    return admin.page(request, "bulk", context, status=status)


def _do(
    admin: AdminPages, request: HttpRequest, name: str, selection: Any, given: dict[str, Any], *, is_ticked: bool
) -> HttpResponse:
    verb = VERBS[name]
    options = {verb.option.name: True} if verb.option is not None and is_ticked else {}
    with action_page.refusals(), acting_as(access.actor_of(request), reason=given["reason"]):
        report = bulk.apply(name, selection, as_id=given["token"], **options)
    if report.run_id is not None:
        messages.success(request, "It is done in the background; this is the run that does it.")
        return HttpResponseRedirect(admin.url("change", report.run_id))
    if report.done:
        messages.success(request, f"{verb.title}: done for {report.done:,} run{'' if report.done == 1 else 's'}.")
    for result in report.refused[:10]:
        messages.warning(request, f"{result.run_id}: {result.detail}")
    if len(report.refused) > 10:
        messages.warning(request, f"and {len(report.refused) - 10} more were refused; the audit log has them all.")
    return HttpResponseRedirect(_list_url(admin, request))


def _deny(request: HttpRequest, name: str, ids: list[str]) -> None:
    """Raise PermissionDenied if the user lacks a permission; the denial is one row of the log, however many runs."""
    for permission in (VERBS[name].permission, "view_run"):
        if not access.may(request, permission):
            if request.method == "POST":
                run_id = ids[0] if len(ids) == 1 else ""
                with suppress(PermissionDenied):
                    action_page.log_denied(request, name, permission, run_id)
            access.demand(request, permission)


def _wanted(posted: QueryDict) -> RunCriteria | None:
    """Return the filter; None if a part of it is wrong: the other parts alone would select other runs."""
    form = FilterForm(QueryDict(posted.get("filter", "").removeprefix("?")))
    if not form.is_valid():
        return None
    with reading():
        return parse_search(form.search, form.wanted())


def _again(admin: AdminPages, request: HttpRequest, why: str) -> HttpResponse:
    messages.error(request, why)
    return HttpResponseRedirect(_list_url(admin, request))


def _list_url(admin: AdminPages, request: HttpRequest) -> str:
    query = (request.POST if request.method == "POST" else request.GET).get("filter", "")
    return admin.url("changelist") + (query if query.startswith("?") else "")
