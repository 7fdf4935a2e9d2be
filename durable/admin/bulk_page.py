"""One verb on many runs: a page that shows their number and the first ten, and asks for a reason.

A verb that cannot be taken back also asks for the number of runs, typed, if they are many. A large selection is
processed in the background.
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
from durable.inspection import Chosen, Filtered, RunCriteria, parse_search, reading
from durable.models import Run
from durable.operations import bulk
from durable.operations.audit import acting_as
from durable.operations.common import BULK as BULK_RUN

__all__ = ["show"]

_MOST_IDS = 500  # ids that one page can select
_MOST_WORKFLOWS = 5  # that the page names


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
    verb = VERBS[name]
    if verb.is_grave and wanted is not None and wanted.is_empty:
        why = f"{verb.title} cannot be taken back, and the list has no filter: choose a workflow or a state first."
        return _again(admin, request, f"Nothing was done: {why}")
    selection = ids if wanted is None else Filtered(wanted)
    if not selection:
        return _again(admin, request, "Choose at least one run, or all that the filter finds.")
    with reading():
        eligibility = bulk.eligible(name, Chosen(tuple(ids)) if wanted is None else Filtered(wanted))
    shown = _whole_number(given.get("count", "")) if is_confirmed else eligibility.count
    is_typed = verb.is_grave and max(eligibility.count, shown) > bulk.AT_ONCE
    form = BulkForm(request.POST if is_confirmed else None, initial={"token": new_id()}, is_typed=is_typed)
    is_ticked = verb.option is not None and bool(given.get(verb.option.name))
    problem, status = "", 200
    if is_confirmed:
        status = 422
        if form.is_valid():
            try:
                if is_typed and not _is_started(form.cleaned_data["token"]):
                    _check_grown(eligibility, shown)
                return _do(admin, request, name, selection, form.cleaned_data, is_ticked=is_ticked)
            except action_page.Refusal as refusal:
                problem, status = refusal.why, refusal.status
    found = Run.objects.using(conf.DATABASE).only("id", "workflow", "state", "created_at").in_bulk(eligibility.shown)
    context = {
        "title": f"{verb.title}: {'all runs of a filter' if 'all' in given else 'runs'}",
        "verb": verb,
        "form": form,
        "problem": problem,
        "is_ticked": is_ticked,
        "is_typed": is_typed,
        "eligibility": eligibility,
        "workflows": _largest(eligibility),
        "left_alone": _left_alone(eligibility),
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


def _is_started(token: str) -> bool:
    """Return whether the page was posted before: the bulk's own run may match the filter by now."""
    return Run.objects.using(conf.DATABASE).filter(pk=token, workflow=BULK_RUN).exists()


def _check_grown(eligibility: bulk.Eligibility, shown: int) -> None:
    """Raise Refusal if the verb would act on more runs than the page showed; fewer are fewer that need it."""
    if eligibility.count > shown:
        why = f"Nothing was done: the page showed {shown:,} runs, and there are {eligibility} now. Type the new number."
        raise action_page.Refusal(why, 409)


def _largest(eligibility: bulk.Eligibility) -> list[tuple[str, str]]:
    """Return the workflows with the most runs, each with its number, and the rest as "others"."""
    named, rest = eligibility.by_workflow[:_MOST_WORKFLOWS], eligibility.by_workflow[_MOST_WORKFLOWS:]
    rows = [(workflow, f"{number:,}") for workflow, number in named]
    return rows + ([(f"{len(rest)} others", f"{sum(number for _, number in rest):,}")] if rest else [])


def _left_alone(eligibility: bulk.Eligibility) -> str:
    """Return how many of the chosen runs are left alone, by state; "" for none."""
    words = []
    for state, number in eligibility.left_alone:
        more = "more than " if eligibility.is_rest_capped and number >= bulk.MAX_COUNTED else ""
        words.append(f"{more}{number:,} {state.replace('_', ' ') if state else 'that do not exist'}")
    return ", ".join(words)


def _whole_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


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
