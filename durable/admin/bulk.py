"""One verb on many runs: a page that says for how many it is, shows ten and asks for a reason; big ones go into the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict

from durable.admin import access, acting
from durable.admin.forms import BulkForm, FilterForm
from durable.admin.verbs import BULK, VERBS
from durable.audit import PERMISSIONS, acting_as
from durable.conf import conf
from durable.ids import new_id
from durable.inspection import Filtered, searched
from durable.models import Run
from durable.operations import bulk

if TYPE_CHECKING:
    from durable.admin.run_admin import RunAdmin

__all__ = ["show"]

_MOST_IDS = 500  # ids that one page can select


def show(admin: RunAdmin, request: HttpRequest) -> HttpResponse:
    """Ask, or do. The selection is posted to it either way; a selection without `confirmed` is asked about."""
    if request.method != "POST":
        return HttpResponseRedirect(admin.url("changelist"))
    name = request.POST.get("verb", "")
    ids = request.POST.getlist("id")[:_MOST_IDS]
    is_confirmed = "confirmed" in request.POST
    acting.deny(
        request, PERMISSIONS.get(name, "operate_run"), lambda: _denied(name, ids), request.POST.get("reason", "")
    )
    access.demand(request, "view_run")
    if name not in BULK:
        return _again(admin, request, "Choose what to do with the runs first.")
    selection = Filtered(_wanted(request.POST)) if "all" in request.POST else ids
    if not selection:
        return _again(admin, request, "Choose at least one run, or all that the filter finds.")
    verb = VERBS[name]
    form = BulkForm(request.POST if is_confirmed else None, initial={"token": new_id()})
    is_ticked = verb.option is not None and bool(request.POST.get(verb.option.name))
    problem, status = "", 200
    if is_confirmed:
        status = 422
        if form.is_valid():
            try:
                return _do(admin, request, name, selection, form.cleaned_data["reason"], is_ticked=is_ticked)
            except acting.Refusal as refusal:
                problem, status = refusal.why, refusal.status
    eligibility = bulk.eligible(name, selection)
    found = Run.objects.using(conf.DATABASE).only("id", "workflow", "state", "created_at").in_bulk(eligibility.shown)
    context = {
        "title": f"{verb.title}: {'all runs of a filter' if 'all' in request.POST else 'runs'}",
        "verb": verb,
        "form": form,
        "problem": problem,
        "is_ticked": is_ticked,
        "eligibility": eligibility,
        "runs": [found[each] for each in eligibility.shown if each in found],
        "ids": ids,
        "is_all": "all" in request.POST,
        "filter": request.POST.get("filter", ""),
        "list_url": _list_url(admin, request),
        "at_once": bulk.AT_ONCE,
    }
    return admin.page(request, "bulk", context, status=status)


def _do(
    admin: RunAdmin, request: HttpRequest, name: str, selection: Any, reason: str, *, is_ticked: bool
) -> HttpResponse:
    verb = VERBS[name]
    options = {verb.option.name: True} if verb.option is not None and is_ticked else {}
    with acting.refusals(), acting_as(access.actor_of(request), reason=reason):
        report = bulk.apply(name, selection, **options)
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


def _denied(name: str, ids: list[str]) -> None:
    """Have each run's denial logged, as if each had been asked for by itself."""
    for run_id in ids or [""]:
        acting_verb = VERBS.get(name, VERBS["wake"])
        acting_verb.perform(run_id, new_id())


def _wanted(posted: QueryDict) -> Any:
    form = FilterForm(QueryDict(posted.get("filter", "").removeprefix("?")))
    form.is_valid()
    return searched(form.search, form.wanted())


def _again(admin: RunAdmin, request: HttpRequest, why: str) -> HttpResponse:
    messages.error(request, why)
    return HttpResponseRedirect(_list_url(admin, request))


def _list_url(admin: RunAdmin, request: HttpRequest) -> str:
    query = request.POST.get("filter", "")
    return admin.url("changelist") + (query if query.startswith("?") else "")
