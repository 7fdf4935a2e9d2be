"""The list of runs: a filter shown as chips, a search box, suggestions, columns, orders, saved views, pages by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy, ngettext

from durable.admin import access, action_page, pages
from durable.admin.filter_form import FilterForm, query_of, with_offsets
from durable.admin.pages import AdminPages
from durable.conf import conf
from durable.core import registry
from durable.core.records import ENDED, RunState
from durable.core.tally import HELD
from durable.inspection.actions import list_views
from durable.inspection.activities import activities_of_runs
from durable.inspection.counting import Count
from durable.inspection.explain_states import Explanation
from durable.inspection.explanation import explain
from durable.inspection.humanize import thousands
from durable.inspection.pagination import RunOrder
from durable.inspection.queues import paused_of
from durable.inspection.reading import reading
from durable.inspection.run_facts import About, Tag, about_of, names_of_tags, tags_of
from durable.inspection.run_lanes import WINDOW, RunPage
from durable.inspection.runs import (
    RunCriteria,
    count_runs,
    failed_attempts,
    list_and_count,
    list_runs,
    parse_search,
    settle_roots,
)
from durable.inspection.shown import ShownStatus, statuses_of
from durable.inspection.wording import told
from durable.inspection.workflows import KINDS, find_names
from durable.models import Run, SavedView
from durable.models.run import RunQuerySet
from durable.notifier import redis_clients
from durable.operations.eligibility import allowed_states
from durable.operations.saved_views import delete_view, save_view
from durable.operations.verbs import BULK_ACTIONS, RUN_VERBS, RunVerb

ORDERS: Final[Mapping[RunOrder, Any]] = {
    RunOrder.NEWEST: gettext_lazy("newest first"),
    RunOrder.OLDEST: gettext_lazy("oldest first"),
    RunOrder.LAST_FINISHED: gettext_lazy("last ended first"),
    RunOrder.FIRST_FINISHED: gettext_lazy("first ended first"),
    RunOrder.NEXT: gettext_lazy("next to go on first"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name in the address, its title, and the orders that clicks on its head choose in turn."""

    name: str
    title: Any
    orders: Sequence[RunOrder] = ()
    is_default: bool = True
    is_number: bool = False


COLUMNS: Final = (
    Column(name="state", title=gettext_lazy("State")),
    Column(name="workflow", title=gettext_lazy("Workflow")),
    Column(name="queue", title=gettext_lazy("Queue"), is_default=False),
    Column(name="what", title=gettext_lazy("What it does")),
    Column(name="status", title=gettext_lazy("Progress")),
    Column(name="failed", title=gettext_lazy("Failed attempts"), is_number=True),
    Column(name="created", title=gettext_lazy("Created"), orders=(RunOrder.NEWEST, RunOrder.OLDEST), is_number=True),
    Column(
        name="finished",
        title=gettext_lazy("Ended"),
        orders=(RunOrder.LAST_FINISHED, RunOrder.FIRST_FINISHED),
        is_default=False,
        is_number=True,
    ),
    Column(name="wakes", title=gettext_lazy("Goes on"), orders=(RunOrder.NEXT,), is_default=False, is_number=True),
    Column(name="took", title=gettext_lazy("Took"), is_number=True),
    Column(name="worker", title=gettext_lazy("Worker"), is_default=False),
    Column(name="tags", title=gettext_lazy("Tags"), is_default=False),
    Column(name="about", title=gettext_lazy("About"), is_default=False),
    Column(name="parent", title=gettext_lazy("Started by"), is_default=False),
)
_DEFAULTS: Final = [each.name for each in COLUMNS if each.is_default]
#: The column of each order, which a list in that order always shows.
_SORTED: Final = {order: each.name for each in COLUMNS for order in each.orders}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A column of one list. `query` is the address in the other order, "" if no index serves it."""

    column: Column
    query: str
    aria_sort: str


def order_of(given: QueryDict) -> RunOrder:
    """Return the order that the address names. Raises ValueError for one that no index serves."""
    name = given.get("sort", "")
    if not name:
        return RunOrder.NEWEST
    order = next((each for each in ORDERS if each.value == name), None)
    if order is None:
        orders = ", ".join(each.value for each in ORDERS)
        raise ValueError(
            gettext("The list cannot be sorted by “%(name)s”. The orders that an index serves are %(orders)s.")
            % {"name": name[:40], "orders": orders}
        )
    return order


def columns_of(given: QueryDict, order: RunOrder) -> list[Head]:
    """Return the columns that the address names, in their own order; unknown names are ignored."""
    names = {*(given.getlist("columns") or _DEFAULTS), *([_SORTED[order]] if given.get("sort") else [])}
    chosen = [each for each in COLUMNS if each.name in names]
    return [_head(given, each, order) for each in chosen]


def _head(given: QueryDict, column: Column, order: RunOrder) -> Head:
    is_sorted = order in column.orders
    others = [each for each in column.orders if each is not order] if is_sorted else list(column.orders[:1])
    direction = "descending" if order.is_descending else "ascending"
    return Head(
        column=column,
        query=query_of(given, sort=others[0].value) if others else "",
        aria_sort=direction if is_sorted else "",
    )


_SUGGESTED = 200  # names in the page; JavaScript finds all names


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, as the list shows it."""

    run: Run
    url: str
    parent_url: str
    explanation: Explanation
    failed_attempts: int
    took: timedelta
    tags: Sequence[Tag] = ()
    about: Sequence[About] = ()
    status: ShownStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownView:
    """A saved view, and its addresses; `delete_url` is "" for a user who may not delete it."""

    view: SavedView
    url: str
    delete_url: str
    is_current: bool


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list; for a page that refreshes itself, only its table."""
    given, now = request.GET, pages.now()
    if (exact := with_offsets(given)) is not None:
        return HttpResponseRedirect(exact)
    form = FilterForm(given)
    form.is_valid()  # an invalid field shows its own error, and is ignored
    within = access.within(request)
    wanted = parse_search(form.search, form.wanted(), within)
    # Whether there are children at all would reveal hidden ones.
    wanted = settle_roots(wanted) if within is None else replace(wanted, only_roots=wanted.hides_children)
    is_live = "live" in given
    page, found, order, problem = _read(wanted, given, within, is_counted=not is_live)
    running = activities_of_runs(page.runs, now)
    paused = paused_of(page.runs, now)
    statuses = statuses_of(page.runs)
    rows = [(each.id, each.state, each.change_seq, each.fence, each.summary) for each in page.runs]
    said = [(run_id, each.revision) for run_id, each in statuses.items()]
    etag = pages.etag_of(now, *rows, [step.key for steps in running.values() for step in steps], *paused, *said)
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    heads = columns_of(given, order)
    if not statuses and "columns" not in given:  # most workflows set none
        heads = [each for each in heads if each.column.name != "status"]
    columns = {each.column.name for each in heads}
    attempts = failed_attempts(page.runs) if "failed" in columns else {}
    tags = tags_of(page.runs) if "tags" in columns else {}
    about = about_of(page.runs) if "about" in columns else {}
    existing = access.existing(request, [each.parent_id for each in page.runs])
    context = {
        "title": gettext("Runs"),
        "form": form,
        "problem": problem,
        "heads": heads,
        "rows": [
            Row(
                run=run,
                url=admin.url("change", run.id),
                parent_url=admin.url("change", run.parent_id) if run.parent_id in existing else "",
                explanation=explain(run, now, running=running[run.id], paused=paused.get(run.queue), within=within),
                failed_attempts=attempts.get(run.id, 0),
                took=(run.finished_at or now) - run.created_at,
                tags=tags.get(run.id, ()),
                about=about.get(run.id, ()),
                status=statuses.get(run.id),
            )
            for run in page.runs
        ],
        "page": page,
        "window": WINDOW,
        "order_title": ORDERS[order],
        "orders": [(each.value, title, each is order) for each, title in ORDERS.items()],
        "is_newest_first": order is RunOrder.NEWEST and not wanted.id_prefix,
        "next_query": query_of(given, after=page.next_cursor) if page.next_cursor else "",
        "first_query": query_of(given) if "after" in given else "",
        "is_filtered": form.is_filtered,
        "tag_hint": _tag_hint(wanted, within) if form.search and not page.runs else None,
        "verbs": _verbs(request, wanted),
        "etag": etag,
    }
    if not is_live:
        context |= _around(admin, request, wanted, found, form, order)
    return pages.tagged(admin.page(request, "_list" if is_live else "list", context), etag)


def _tag_hint(wanted: RunCriteria, within: RunQuerySet | None) -> Sequence[str] | None:
    """Return names of tags by which runs may be found, if the search looked for a text in errors; else None."""
    if not wanted.error_text or wanted.tags:
        return None
    return names_of_tags() if within is None else ()


def _read(
    wanted: RunCriteria, given: QueryDict, within: RunQuerySet | None, *, is_counted: bool
) -> tuple[RunPage, Count | None, RunOrder, str]:
    order, cursor = RunOrder.NEWEST, given.get("after")
    try:
        order = order_of(given)
        if is_counted:
            return *list_and_count(wanted, order=order, cursor=cursor, within=within), order, ""
        return list_runs(wanted, order=order, cursor=cursor, within=within), None, order, ""
    except ValueError as error:
        return RunPage(runs=[]), None, order, told(error)


def _around(
    admin: AdminPages, request: HttpRequest, wanted: RunCriteria, found: Count | None, form: FilterForm, order: RunOrder
) -> dict[str, Any]:
    """Return the parts around the table, which are not refreshed with it."""
    given, within = request.GET, access.within(request)
    columns = {each.column.name for each in columns_of(given, RunOrder.NEWEST)}
    shown = [(each.name, each.title, each.name in columns) for each in COLUMNS]
    return {
        "title": gettext("Runs")
        if found is None
        else ngettext("%(number)s run", "%(number)s runs", found.number) % {"number": found},
        "hidden": _hidden(wanted, found, order, within),
        "with_children_query": query_of(given, children="true"),
        "hidden_alerts": _hidden_alerts(wanted, found, order, within),
        "with_alerts_query": query_of(given, alerts="true"),
        "found": found,
        "columns": shown,
        "filter_query": query_of(given),
        "live_query": query_of(given, live="1", after=given.get("after", "")),
        "kept_by_search": _kept(given, without={"q"}),
        "kept_by_filter": _kept(given, without=set(form.fields)),
        "kept_by_columns": _kept(given, without={"columns", "sort"}),
        "known_names": _suggested(),
        "bulk_url": admin.url("bulk"),
        "views": _views(admin, request),
        "may_share": access.may(request, "share_savedview") and not access.is_limited(),
    }


#: The verbs in a list of runs in any state.
_USUAL: Final = frozenset(BULK_ACTIONS) - {"settle"}


def _verbs(request: HttpRequest, wanted: RunCriteria) -> list[RunVerb]:
    """Return the verbs that the user may apply, and that the states in the filter allow."""
    if not access.is_offered("bulk"):
        return []
    states: Collection[str] = wanted.states
    if wanted.cause or wanted.place:
        states = {RunState.FAILED.value, HELD}
    elif wanted.is_held:
        states = {HELD, *(each.value for each in RunState if each not in ENDED)}
    fitting = [
        name for name in BULK_ACTIONS if (allowed_states(name).intersection(states) if states else name in _USUAL)
    ]
    return [RUN_VERBS[name] for name in fitting if access.may(request, RUN_VERBS[name].permission)]


def _views(admin: AdminPages, request: HttpRequest) -> list[ShownView]:
    key, may_share = str(request.user.pk), access.may(request, "share_savedview")
    here = QueryDict(query_of(request.GET).removeprefix("?"))
    return [
        ShownView(
            view=view,
            url=f"{admin.url('changelist')}?{view.query}",
            delete_url=reverse("admin:durable_run_delete_view", args=[view.pk], current_app=admin.admin_site.name)
            if may_share or view.owner_key == key
            else "",
            is_current=bool(here) and QueryDict(view.query) == here,
        )
        for view in list_views(key, with_shared=not access.is_limited())
    ]


def _hidden(wanted: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None) -> str:
    """Say how many matching children are not listed; "" if there are none."""
    if not wanted.only_roots:
        return ""
    number = _number_left_out(wanted, replace(wanted, only_roots=False), found, order, within)
    if number is None:
        return gettext("Children are not listed.")
    text = ngettext(
        "%(number)s child matches and is not listed.", "%(number)s children match and are not listed.", number
    )
    return text % {"number": thousands(number)} if number > 0 else ""


def _hidden_alerts(wanted: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None) -> str:
    """Say how many matching runs of durable itself are not listed; "" if there are none."""
    if not wanted.leaves_alerts_out:
        return ""
    wider = replace(wanted, hides_alerts=False)
    # Runs that are due next are read by queue: the count is a second look at all queues, for which bulks are too few.
    is_counted = bool(conf.ALERTS) or order is not RunOrder.NEXT
    number = _number_left_out(wanted, wider, found, order, within) if is_counted else None
    if number is None:
        return gettext("Alerts, bulks and runs of quiet workflows are not listed.")
    text = ngettext(
        "%(number)s alert, bulk or run of a quiet workflow matches and is not listed.",
        "%(number)s alerts, bulks and runs of quiet workflows match and are not listed.",
        number,
    )
    return text % {"number": thousands(number)} if number > 0 else ""


def _number_left_out(
    wanted: RunCriteria, wider: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None
) -> int | None:
    """Return how many runs beyond the `found` ones match a wider filter; None if there are too many to count."""
    is_cheap = found is not None and not found.is_capped and not wanted.error_text  # do not search for a text twice
    everyone = count_runs(wider, order=order, within=within) if is_cheap else None
    return None if found is None or everyone is None or everyone.is_capped else everyone.number - found.number


def _suggested() -> dict[str, list[str]]:
    """Return the names to suggest, by kind; none if they could belong to hidden runs."""
    if access.is_limited():
        return {}
    workflows = sorted(each.name for each in registry.all())[:_SUGGESTED]
    return {"workflow": workflows, "queue": redis_clients.queue_names()[:_SUGGESTED], "worker": []}


def _kept(given: QueryDict, *, without: set[str]) -> list[tuple[str, str]]:
    """Return the parameters of the address that a form has to keep."""
    dropped = {*without, "after", "live"}
    return [(name, each) for name, values in given.lists() if name not in dropped for each in values if each]


class _ViewForm(forms.Form):
    name = forms.CharField(max_length=80)
    query = forms.CharField(required=False, max_length=4_001)
    shared = forms.BooleanField(required=False)


def add_view(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Save the posted address under the posted name, and show it."""
    access.demand(request, "view_run")
    if request.method != "POST":
        return HttpResponseRedirect(admin.url("changelist"))
    form = _ViewForm(request.POST)
    query = request.POST.get("query", "").removeprefix("?")
    address = f"{admin.url('changelist')}?{query}"
    with reading():
        is_valid = form.is_valid() and FilterForm(QueryDict(query)).is_valid()
    if not is_valid:
        messages.error(
            request,
            gettext("Nothing was saved: a view needs a name of at most 80 characters, and a filter without a mistake."),
        )
        return HttpResponseRedirect(address)
    given = form.cleaned_data
    if given["shared"] and access.is_limited():
        messages.error(
            request,
            gettext("Nothing was saved: where users see some runs only, a view is for the user alone who saves it."),
        )
        return HttpResponseRedirect(address)
    if given["shared"] and not access.may(request, "share_savedview"):
        action_page.log_denied(request, "share", "share_savedview", "")
    kept = query_of(QueryDict(query)).removeprefix("?")  # of the first page
    try:
        with action_page.refusals():
            save_view(access.actor_of(request), given["name"], kept, is_shared=given["shared"])
    except action_page.Refusal as refusal:
        messages.error(request, refusal.why)
    else:
        messages.success(request, gettext("The view “%(name)s” is saved.") % {"name": given["name"]})
    return HttpResponseRedirect(f"{admin.url('changelist')}?{kept}")


def remove_view(admin: AdminPages, request: HttpRequest, pk: int) -> HttpResponse:
    """Delete the view."""
    access.demand(request, "view_run")
    if request.method == "POST":
        own = list_views(str(request.user.pk), with_shared=False) if access.is_limited() else []
        if access.is_limited() and all(each.pk != pk for each in own):
            raise Http404(gettext("There is no such view: it may have been deleted."))
        try:
            with action_page.refusals():
                delete_view(access.actor_of(request), pk)
        except action_page.Refusal as refusal:
            raise Http404(refusal.why) from refusal
        messages.success(request, gettext("The view is deleted."))
    return HttpResponseRedirect(admin.url("changelist"))


_MOST_TEXT = 200  # characters


def show_names(admin: AdminPages, request: HttpRequest, kind: str) -> HttpResponse:  # noqa: ARG001  # as all pages
    """Return names that contain `q`, after the name `after`: `{"names": [...], "next": name or null}`."""
    if kind not in KINDS:
        raise Http404(
            gettext("There are no names of “%(kind)s”; there are those of %(kinds)s.")
            % {"kind": kind, "kinds": ", ".join(KINDS)}
        )
    text, after = (request.GET.get(name, "")[:_MOST_TEXT] for name in ("q", "after"))
    found = find_names(kind, text, after)
    response = JsonResponse({"names": found.names, "next": found.next})
    response["Cache-Control"] = "private, no-cache"
    return response
