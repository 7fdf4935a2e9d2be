"""One verb on many runs: a page that shows the first of them and asks for a reason, and a page with the result.

For a verb that cannot be undone on many runs, the operator has to type their number. A large selection is processed in
the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.admin import access, action_page, pages
from durable.admin.filter_form import FilterForm
from durable.admin.forms import BulkForm, SettleForm, with_fields
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.conf import conf
from durable.core.ids import new_id
from durable.core.numbers import read_whole
from durable.core.records import ENDED
from durable.core.registry import BULK as BULK_RUN
from durable.inspection.bulks import BulkSummary, FailedAgain, failed_again, find_bulk, order_words, refusals
from durable.inspection.causes import CauseOfBulk, causes_among, count_repeated
from durable.inspection.children import FailedChildren
from durable.inspection.explanation import explain
from durable.inspection.humanize import thousands
from durable.inspection.reading import reading
from durable.inspection.runs import RunCriteria, parse_search, settle_roots
from durable.inspection.selection import Chosen, Filtered
from durable.inspection.wording import cause_in_words, command, state_in_words, verb_title
from durable.models import Run
from durable.models.run import RunQuerySet
from durable.operations import bulk
from durable.operations.audit import PERMISSIONS
from durable.operations.eligibility import Selection, place_of, starts_of_bulk
from durable.operations.verbs import BULK_ACTIONS, DECISIONS, RUN_VERBS, STOPS, RunVerb, possible_verbs

_MOST_IDS = 500  # ids that one page can select
_MOST_WORKFLOWS = 5  # that the page names
_SELECTING = ("verb", "all", "filter", "bulk", "children_of", "group", "id")  # parameters that select the runs
_CAREFUL = ("first", "stop_after", "within", "rate")  # fields of the form that a link may fill in


class _NothingChosen(Exception):
    """The page cannot be shown: the operator is redirected to the list, with a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The runs that the operator has chosen.

    Runs with these ids, all that match the filter `wanted`, those of a bulk that failed `again`, or the failed
    `children` of a run.
    """

    ids: list[str]
    wanted: RunCriteria | None = None
    again: FailedAgain | None = None
    children: FailedChildren | None = None

    @property
    def named(self) -> Selection | None:
        """The selection; None if the runs are chosen by id."""
        return self.again or self.children or (None if self.wanted is None else Filtered(self.wanted))

    @property
    def selection(self) -> Selection:
        """The selection."""
        return self.named or Chosen(tuple(self.ids))


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the confirmation page, or apply the verb.

    The list posts the selection, and a link to the confirmation has it in its address. Only a POST with `confirmed`
    applies the verb.
    """
    given = request.POST if request.method == "POST" else request.GET
    if request.method != "POST" and "verb" not in given:
        return HttpResponseRedirect(admin.url("changelist"))
    name, ids = given.get("verb", ""), given.getlist("id")[:_MOST_IDS]
    _deny(request, name if name in BULK_ACTIONS else BULK_ACTIONS[0], ids)
    try:
        choice = _choice(request, given, name, ids)
    except _NothingChosen as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(_list_url(admin, request))
    verb, is_confirmed = RUN_VERBS[name], request.method == "POST" and "confirmed" in given
    with reading():
        eligibility = bulk.eligible(name, choice.selection)
    shown = (read_whole(given.get("count", "")) or 0) if is_confirmed else eligibility.count
    is_typed = verb.is_grave and max(eligibility.count, shown) > bulk.AT_ONCE
    careful = {each: given[each] for each in _CAREFUL if each in given}
    initial = {"token": new_id(), **careful}
    form = with_fields(BulkForm, verb)(request.POST if is_confirmed else None, initial=initial, is_typed=is_typed)
    problem, status = "", 422 if is_confirmed else 200
    if is_confirmed and form.is_valid():
        try:
            if is_typed and not _is_started(form.cleaned_data["token"]):
                _check_grown(eligibility, shown)
            options = verb.ticked(given) | {each: form.cleaned_data[each] for each in form.asked}
            if isinstance(form, SettleForm):
                options = form.answer
            return _do(admin, request, name, choice.named or choice.ids, form, options)
        except action_page.Refusal as refusal:
            problem, status = refusal.why, refusal.status
    context = {
        **_preview(request, verb, choice, eligibility),
        "form": form,
        "problem": problem,
        "ticked": verb.ticked(given),
        "is_typed": is_typed,
        "is_all": "all" in given,
        "first": _first(form, careful),
        "all_url": _all_url(admin, given),
        "is_careful": bool(careful) or any(form[each].errors for each in _CAREFUL),
        "filter": given.get("filter", ""),
        "list_url": _list_url(admin, request),
        "at_once": bulk.AT_ONCE,
    }
    return admin.page(request, "bulk", context, status=status)


def _choice(request: HttpRequest, given: QueryDict, name: str, ids: list[str]) -> _Choice:
    """Return the runs that are chosen for a verb. Raises _NothingChosen."""
    if name not in BULK_ACTIONS:
        raise _NothingChosen(_("Choose what to do with the runs first."))
    if access.is_limited() and any(each in given for each in ("all", "bulk", "children_of")):
        raise _NothingChosen(
            _("Nothing was done: users of this project see some runs only, so choose the runs themselves.")
        )
    seen, wanted = access.existing(request, ids), None
    if "all" in given:
        wanted = _wanted(given)
        if wanted is None:
            raise _NothingChosen(_("Nothing was done: the filter has a mistake. Correct it, and choose again."))
        if RUN_VERBS[name].is_grave and wanted.is_empty:
            why = _(
                "Nothing was done: %(verb)s cannot be taken back, and the list has no filter: choose a workflow or a "
                "state first."
            )
            raise _NothingChosen(why % {"verb": RUN_VERBS[name].title})
    choice = _Choice(
        ids=[each for each in ids if each in seen],
        wanted=wanted,
        again=_failed_again(given.get("bulk", "")),
        children=_failed_children(given),
    )
    if choice.named is None and not choice.ids:
        raise _NothingChosen(_("Choose at least one run, or all that the filter finds."))
    return choice


def _preview(request: HttpRequest, verb: RunVerb, choice: _Choice, eligibility: bulk.Eligibility) -> dict[str, Any]:
    """Return the page's preview: how many runs, which, why they failed, and what the verb starts again with them."""
    within, children, now = access.within(request), choice.children, pages.now()
    with reading():
        causes = causes_among(choice.selection, bulk.allowed_states(verb.action))
        starts = starts_of_bulk(verb.action, choice.selection, eligibility)
        # a run that repeats a child is not a child of the parent, which waits for the child itself
        repeated = (
            count_repeated(choice.selection, bulk.allowed_states(verb.action), within) if children is None else None
        )
    found = access.visible_runs(request).defer("input", "output").in_bulk(eligibility.shown)
    return {
        "title": _title(verb, choice.wanted, causes),
        "verb": verb,
        "options": [] if verb.takes_answer else verb.flags,
        "does": verb.does if not verb.takes_answer else _settling(choice),
        "eligibility": eligibility,
        "eligible": number_of(eligibility),
        "workflows": _largest(eligibility),
        "left_alone": _left_alone(eligibility),
        "causes": causes,
        "repeated_note": "" if repeated is None else repeated.note,
        "starts_note": "" if starts is None else starts.note,
        "rows": [
            (found[each], explain(found[each], now, within=within).headline)
            for each in eligibility.shown
            if each in found
        ],
        "ids": choice.ids,
        "again": "" if choice.again is None else choice.again.bulk_id,
        "children": children,
        "parent_state": None if children is None else _state_of(children.parent),
        "command": ""
        if children is None or verb.action != "recover"
        else command("recover", children_of=children.parent, group=children.group or ""),
    }


def _settling(choice: _Choice) -> str:
    """Say which steps the answer is for."""
    place = place_of(choice.selection)
    if place:
        text = _(
            "One answer for all: for the steps at “%(place)s” that wait for a person. A run without one is left alone. An "
            "answer cannot be taken back."
        )
        return text % {"place": place}
    return _(
        "One answer for all: for each step of these runs that waits for a person. A run without one is left alone. An answer "
        "cannot be taken back."
    )


def _all_url(admin: AdminPages, given: QueryDict) -> str:
    """Return the address of the same page, without the proposal to try some runs first."""
    query = given.copy()
    for name in [name for name in query if name not in _SELECTING]:
        del query[name]
    return f"{admin.url('bulk')}?{query.urlencode()}"


def _first(form: BulkForm, careful: dict[str, str]) -> int:
    """Return how many runs the page proposes to try first; 0 for none."""
    given = form["first"].value() or "" if form.is_bound else careful.get("first", "")
    return read_whole(str(given)) or 0


def _do(
    admin: AdminPages, request: HttpRequest, name: str, selection: Any, form: BulkForm, options: dict[str, Any]
) -> HttpResponse:
    verb, given = RUN_VERBS[name], form.cleaned_data
    with action_page.acting_on_runs(request, given["reason"]):
        report = bulk.apply(
            name,
            selection,
            as_id=_own_id(request, given["token"]),
            canary=form.canary,
            rate=given.get("rate"),
            **options,
        )
    if report.run_id is not None:
        messages.success(request, _("It is done in the background; this page shows how far it is."))
    elif report.done:
        done = ngettext("%(verb)s: done for %(number)s run.", "%(verb)s: done for %(number)s runs.", report.done)
        messages.success(request, done % {"verb": verb.title, "number": thousands(report.done)})
    return HttpResponseRedirect(admin.url("bulk_result", report.bulk_id))


def _own_id(request: HttpRequest, token: str) -> str:
    """Return an id for the bulk: the token, or another id if a hidden run or bulk has that one."""
    if not access.is_limited() or access.find_bulk(request, token) is not None:
        return token
    is_taken = Run.objects.using(conf.DATABASE).filter(pk=token).exists() or find_bulk(token) is not None
    return new_id() if is_taken else token


def _failed_again(bulk_id: str) -> FailedAgain | None:
    """Return the runs of this bulk that have failed again; None if there is no such bulk."""
    with reading():
        earlier = find_bulk(bulk_id) if bulk_id else None
    return None if earlier is None else FailedAgain(bulk_id, earlier.verb)


def _failed_children(given: QueryDict) -> FailedChildren | None:
    """Return the failed children of the run that the address names; None if it names none."""
    parent = given.get("children_of", "").replace("\0", "")
    return FailedChildren(parent, given.get("group", "").replace("\0", "") or None) if parent else None


def _state_of(run_id: str) -> str:
    """Return the state of a run; "" if there is no such run."""
    return Run.objects.using(conf.DATABASE).filter(pk=run_id).values_list("state", flat=True).first() or ""


def _is_started(token: str) -> bool:
    """Return whether the page was posted before: since then, the filter may match the bulk's own run."""
    return Run.objects.using(conf.DATABASE).filter(pk=token, workflow=BULK_RUN).exists()


def _check_grown(eligibility: bulk.Eligibility, shown: int) -> None:
    """Raise Refusal if the verb would act on more runs than the page showed. Fewer are accepted."""
    if eligibility.count > shown:
        why = ngettext(
            "Nothing was done: the page showed %(shown)s run, and there are %(found)s now. Type the new number.",
            "Nothing was done: the page showed %(shown)s runs, and there are %(found)s now. Type the new number.",
            shown,
        )
        raise action_page.Refusal(why % {"shown": thousands(shown), "found": number_of(eligibility)}, 409)


def _largest(eligibility: bulk.Eligibility) -> list[tuple[str, str]]:
    """Return the workflows with the most runs and their numbers, and the rest as "others"."""
    named, rest = eligibility.by_workflow[:_MOST_WORKFLOWS], eligibility.by_workflow[_MOST_WORKFLOWS:]
    rows = [(workflow, thousands(number)) for workflow, number in named]
    if rest:
        others = ngettext("%(number)d other", "%(number)d others", len(rest)) % {"number": len(rest)}
        rows.append((others, thousands(sum(number for workflow, number in rest))))
    return rows


def _left_alone(eligibility: bulk.Eligibility) -> str:
    """Say how many of the chosen runs are left alone, by state; "" for none."""
    words = []
    for state, number in eligibility.left_alone:
        text = _("%(number)s %(state)s") if state else _("%(number)s that do not exist")
        if eligibility.is_rest_capped and number >= bulk.MAX_COUNTED:
            text = _("more than %(number)s %(state)s") if state else _("more than %(number)s that do not exist")
        words.append(text % {"number": thousands(number), "state": state_in_words(state)})
    return ", ".join(words)


def number_of(eligibility: bulk.Eligibility) -> str:
    """Return a number of runs in words, with "more than" or "at least" if it is not exact."""
    number = thousands(eligibility.count)
    if not eligibility.is_capped:
        return number
    is_counted = eligibility.count >= bulk.MAX_COUNTED
    return (_("more than %(number)s") if is_counted else _("at least %(number)s")) % {"number": number}


def _title(verb: RunVerb, wanted: RunCriteria | None, causes: Sequence[CauseOfBulk]) -> str:
    if wanted is None:
        return _("%(verb)s: runs") % {"verb": verb.title}
    named = [each for each in causes if each.fingerprint and each.fingerprint == wanted.cause]
    if not named:
        return _("%(verb)s: all runs of a filter") % {"verb": verb.title}
    what = cause_in_words(named[0].place, named[0].error_type)
    return _("%(verb)s: all runs with the cause “%(cause)s”") % {"verb": verb.title, "cause": what}


def _deny(request: HttpRequest, name: str, ids: list[str]) -> None:
    """Raise PermissionDenied if the user lacks a permission. The log gets one row, however many runs there are."""
    for permission in (RUN_VERBS[name].permission, "view_run"):
        if not access.may(request, permission):
            if request.method == "POST":
                run_id = ids[0] if len(ids) == 1 else ""
                with suppress(PermissionDenied):
                    action_page.log_denied(request, name, permission, run_id)
            access.demand(request, permission)


def _wanted(posted: QueryDict) -> RunCriteria | None:
    """Return the filter, or None if a part of it is invalid: the other parts alone would select other runs."""
    form = FilterForm(QueryDict(posted.get("filter", "").removeprefix("?")))
    if not form.is_valid():
        return None
    with reading():
        return settle_roots(parse_search(form.search, form.wanted()))


def _list_url(admin: AdminPages, request: HttpRequest) -> str:
    given = request.POST if request.method == "POST" else request.GET
    if not access.is_limited() and (children := _failed_children(given)) is not None:
        return f"{admin.url('change', children.parent)}?part=children"
    query = given.get("filter", "")
    return admin.url("changelist") + (query if query.startswith("?") else "")


_SHOWN: Final = 20  # runs that have failed again


def show_result(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the whole page."""
    return admin.page(request, "bulk_result", _context(admin, request, _found(request, key)))


def live_result(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Return the part of the page that changes, or 304 if nothing has changed."""
    found = _found(request, key)
    etag = _etag(found)
    if pages.is_known(request, etag):
        return pages.unchanged(etag)
    return pages.tagged(admin.page(request, "_bulk_result", _context(admin, request, found)), etag)


def _found(request: HttpRequest, key: str) -> BulkSummary:
    """Return the bulk of a URL. Raises Http404."""
    bulk_id = as_id(key)
    found = access.find_bulk(request, bulk_id)
    if found is None:
        raise Http404(_('There is no bulk "%(bulk)s". The audit log may have been pruned since.') % {"bulk": bulk_id})
    return found


def _context(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> dict[str, Any]:
    now = pages.now()
    title = str(RUN_VERBS[found.verb].title) if found.verb in RUN_VERBS else verb_title(found.verb)
    within = access.within(request)
    again = failed_again(found.id, found.verb, within).defer("input", "output").order_by("pk")
    runs = list(again[:_SHOWN]) if found.again else []
    recover = {"verb": "recover", "bulk": found.id}
    has_order = found.order is not None and access.may(request, "view_payload")
    return {
        "title": _("%(verb)s: what came of it") % {"verb": title},
        "bulk": found,
        "verb_title": title,
        "trouble": _trouble(found, now, within),
        "words": order_words(found.order, found.began_at) if has_order else "",
        "refusals": refusals(found.id),
        "failed": [(run, explain(run, now, within=within).headline) for run in runs],
        "recover_url": "" if access.is_limited() else f"{admin.url('bulk')}?{urlencode(recover)}",
        "decisions": _decisions(admin, request, found),
        "run_url": "" if found.run is None else admin.url("change", found.run.id),
        "verb_urls": _verbs(admin, request, found),
        "log_url": _log_url(admin, request, found.id),
        "live_url": admin.url("bulk_live", found.id),
        "etag": _etag(found),
        "command": command("bulk", found.id),
    }


def _trouble(found: BulkSummary, now: datetime, within: RunQuerySet | None) -> str:
    """Say what stops the bulk's own run if that needs a person; else ""."""
    if found.run is None or found.run.state in ENDED or found.stopped is not None:
        return ""
    told = explain(found.run, now, within=within)
    return told.headline if told.needs_attention else ""


def _decisions(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> list[tuple[str, str]]:
    """Return title and address of each decision about a bulk that its canary has stopped."""
    if found.run is None or found.stopped is None or not access.may(request, PERMISSIONS["go_on"]):
        return []
    return [(str(RUN_VERBS[name].title), admin.url("act", found.run.id, name)) for name in DECISIONS]


def _verbs(admin: AdminPages, request: HttpRequest, found: BulkSummary) -> list[tuple[str, str, bool]]:
    """Return the other verbs that the bulk's run allows: title, address, and whether it is grave."""
    if found.run is None:
        return []
    verbs = [RUN_VERBS[name] for name in possible_verbs(found.run) if name in {*STOPS, "resume"}]
    return [
        (str(each.title), admin.url("act", found.run.id, each.action), each.is_grave)
        for each in verbs
        if access.may(request, each.permission)
    ]


def _log_url(admin: AdminPages, request: HttpRequest, bulk_id: str) -> str:
    address = reverse("admin:durable_operatoraction_changelist", current_app=admin.admin_site.name)
    return f"{address}?{urlencode({'bulk': bulk_id})}" if access.may(request, "view_run") else ""


def _etag(found: BulkSummary) -> str:
    run = found.run
    state = "" if run is None else f"{run.state} {run.waiting_for} {run.wake_at}"
    return pages.etag_of(pages.now(), found.id, found.numbers, found.phase, state, found.was_stopped)
