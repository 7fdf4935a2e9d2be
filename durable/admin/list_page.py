"""The list of runs: a filter shown as chips, one search box, columns, orders, saved views, pages by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.admin import access, list_columns, pages, sight
from durable.admin.base import AdminPages
from durable.admin.filter_form import FilterForm, query_of, with_offsets
from durable.conf import conf
from durable.core import registry
from durable.core.records import Hold, RunState
from durable.inspection.actions import list_views
from durable.inspection.activities import RunningStep, activities_of_runs
from durable.inspection.counting import Count
from durable.inspection.explain_states import explain
from durable.inspection.explanation import Explanation
from durable.inspection.forks import failed_places
from durable.inspection.humanize import thousands
from durable.inspection.pagination import RunOrder
from durable.inspection.queues import paused_of
from durable.inspection.run_facts import Tag, names_of_tags, tags_of
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
from durable.inspection.wording import told
from durable.models import Run, SavedView
from durable.models.run import RunQuerySet
from durable.notifier import redis_clients
from durable.operations.eligibility import allowed_states
from durable.operations.verbs import BULK_ACTIONS, RUN_VERBS, RunVerb

_SUGGESTED = 200  # names that are in the page; with JavaScript all names are found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, as the list shows it."""

    run: Run
    url: str
    parent_url: str
    explanation: Explanation
    failed_attempts: int
    took: timedelta
    tags: Sequence[Tag]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownView:
    """A saved view, and its addresses; `delete_url` is "" for a user who may not delete it."""

    view: SavedView
    url: str
    delete_url: str
    is_current: bool


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list, or, for a page that refreshes itself, its table alone."""
    given, now = request.GET, pages.now()
    if (exact := with_offsets(given)) is not None:
        return HttpResponseRedirect(exact)
    form = FilterForm(given)
    form.is_valid()  # an invalid field shows its own error, and is ignored
    within = sight.within(request)
    wanted = parse_search(form.search, form.wanted(), within)
    # Whether there are children at all would tell of those that are out of sight.
    wanted = settle_roots(wanted) if within is None else replace(wanted, only_roots=wanted.hides_children)
    is_live = "live" in given
    page, found, order, problem = _read(wanted, given, within, is_counted=not is_live)
    running = activities_of_runs(page.runs, now)
    paused = paused_of(page.runs, now)
    marks = [(each.id, each.state, each.change_seq, each.fence, each.summary) for each in page.runs]
    etag = pages.etag_of(now, *marks, [step.key for steps in running.values() for step in steps], *paused)
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    heads = list_columns.columns_of(given, order)
    columns = {each.column.name for each in heads}
    attempts = failed_attempts(page.runs) if "failed" in columns else {}
    tags = tags_of(page.runs) if "tags" in columns else {}
    places = failed_places(page.runs)
    existing = sight.existing(request, [each.parent_id for each in page.runs])
    context = {
        "title": _("Runs"),
        "now": now,
        "form": form,
        "problem": problem,
        "heads": heads,
        "rows": [
            _row(admin, run, now, attempts, running[run.id], paused, within, existing, tags.get(run.id, ()), places)
            for run in page.runs
        ],
        "page": page,
        "window": WINDOW,
        "order_title": list_columns.ORDERS[order],
        "orders": list_columns.order_choices(order),
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
    """Return the names of tags by which runs could be found, if a text was searched for in errors; None for others."""
    if not wanted.error_text or wanted.tags:
        return None
    return names_of_tags() if within is None else ()


def _read(
    wanted: RunCriteria, given: QueryDict, within: RunQuerySet | None, *, is_counted: bool
) -> tuple[RunPage, Count | None, RunOrder, str]:
    order, cursor = RunOrder.NEWEST, given.get("after")
    try:
        order = list_columns.order_of(given)
        if is_counted:
            return *list_and_count(wanted, order=order, cursor=cursor, within=within), order, ""
        return list_runs(wanted, order=order, cursor=cursor, within=within), None, order, ""
    except ValueError as error:
        return RunPage(runs=[]), None, order, told(error)


def _row(
    admin: AdminPages,
    run: Run,
    now: datetime,
    attempts: Mapping[str, int],
    running: Sequence[RunningStep],
    paused: Mapping[str, Hold],
    within: RunQuerySet | None,
    existing: Collection[str],
    tags: Sequence[Tag],
    places: Mapping[str, str],
) -> Row:
    hold, place = paused.get(run.queue), places.get(run.id, "")
    return Row(
        run=run,
        url=admin.url("change", run.id),
        parent_url=admin.url("change", run.parent_id) if run.parent_id in existing else "",
        explanation=explain(run, now, running=running, paused=hold, within=within, place=place),
        failed_attempts=attempts.get(run.id, 0),
        took=(run.finished_at or now) - run.created_at,
        tags=tags,
    )


def _around(
    admin: AdminPages, request: HttpRequest, wanted: RunCriteria, found: Count | None, form: FilterForm, order: RunOrder
) -> dict[str, Any]:
    """Return what stands around the table, and is not refreshed with it."""
    given, within = request.GET, sight.within(request)
    columns = {each.column.name for each in list_columns.columns_of(given, RunOrder.NEWEST)}
    shown = [(each.name, each.title, each.name in columns) for each in list_columns.COLUMNS]
    return {
        "title": _("Runs") if found is None else _title(found),
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
        "may_share": access.may(request, "share_savedview") and not sight.is_limited(),
    }


def _verbs(request: HttpRequest, wanted: RunCriteria) -> list[RunVerb]:
    """Return the verbs that the user may apply, and that a state of the filter allows."""
    if not sight.is_offered("bulk"):
        return []
    states = {RunState.FAILED.value} if wanted.cause or wanted.place else wanted.states
    fitting = [name for name in BULK_ACTIONS if not states or allowed_states(name) & states]
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
        for view in list_views(key, with_shared=not sight.is_limited())
    ]


def _hidden(wanted: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None) -> str:
    """Return what to say of the children that match and are not listed; "" if there are none."""
    if not wanted.only_roots:
        return ""
    number = _number_left_out(wanted, replace(wanted, only_roots=False), found, order, within)
    if number is None:
        return _("Children are not listed.")
    text = ngettext(
        "%(number)s child matches and is not listed.", "%(number)s children match and are not listed.", number
    )
    return text % {"number": thousands(number)} if number > 0 else ""


def _hidden_alerts(wanted: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None) -> str:
    """Return what to say of durable's own runs that match and are not listed; "" if there are none."""
    if not wanted.leaves_alerts_out:
        return ""
    wider = replace(wanted, hides_alerts=False)
    # Runs that are due next are read by queue: the count is a second look at all queues, for which bulks are too few.
    is_counted = bool(conf.ALERTS) or order is not RunOrder.NEXT
    number = _number_left_out(wanted, wider, found, order, within) if is_counted else None
    if number is None:
        return _("Alerts, bulks and runs of quiet workflows are not listed.")
    text = ngettext(
        "%(number)s alert, bulk or run of a quiet workflow matches and is not listed.",
        "%(number)s alerts, bulks and runs of quiet workflows match and are not listed.",
        number,
    )
    return text % {"number": thousands(number)} if number > 0 else ""


def _number_left_out(
    wanted: RunCriteria, wider: RunCriteria, found: Count | None, order: RunOrder, within: RunQuerySet | None
) -> int | None:
    """Return how many more runs than the `found` ones match a wider filter; None if they are too many to be counted."""
    is_cheap = found is not None and not found.is_capped and not wanted.error_text  # a text is searched for once
    everyone = count_runs(wider, order=order, within=within) if is_cheap else None
    return None if found is None or everyone is None or everyone.is_capped else everyone.number - found.number


def _title(found: Count) -> str:
    return ngettext("%(number)s run", "%(number)s runs", found.number) % {"number": found}


def _suggested() -> dict[str, list[str]]:
    """Return the names that the page suggests, by what they name; none where those of hidden runs are not told."""
    if sight.is_limited():
        return {}
    return {"workflow": _workflows(), "queue": redis_clients.queue_names()[:_SUGGESTED], "worker": []}


def _workflows() -> list[str]:
    return sorted(each.name for each in registry.all())[:_SUGGESTED]


def _kept(given: QueryDict, *, without: set[str]) -> list[tuple[str, str]]:
    """Return the parameters of the address that a form must keep."""
    dropped = {*without, "after", "live"}
    return [(name, each) for name, values in given.lists() if name not in dropped for each in values if each]
