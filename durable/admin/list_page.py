"""The list of runs: filters that are links, one search box, pages by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict

from durable.admin import access, pages
from durable.admin.base import AdminPages
from durable.admin.forms import SINCE, FilterForm
from durable.admin.verbs import BULK, VERBS
from durable.core import registry
from durable.core.records import RunState
from durable.inspection import (
    Explanation,
    InvalidCursorError,
    RunPage,
    explain,
    failed_attempts,
    list_runs,
    parse_search,
)
from durable.inspection.runs import WINDOW
from durable.models import Run
from durable.notifier.redis_clients import queue_names as queue_names

__all__ = ["Choice", "Group", "Row", "show"]

_MOST_CHOICES = 30
_OWN = {"q", "after", "live"}  # parameters that a new search sets or drops
_SINCE = {"": "Any time", "hour": "Past hour", "day": "Past 24 hours", "week": "Past 7 days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, as the list shows it."""

    run: Run
    url: str
    explanation: Explanation
    failed_attempts: int
    took: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a filter, as a link that adds the choice, or removes it if it is selected."""

    title: str
    query: str
    is_selected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The choices of one filter."""

    title: str
    choices: Sequence[Choice]


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the list, or, for a page that refreshes itself, its table alone."""
    form = FilterForm(request.GET)
    page, problem = _read(form, request.GET.get("after"))
    now = pages.now()
    is_live = "live" in request.GET
    etag = pages.etag_of(now, *((each.id, each.state, each.change_seq, each.fence, each.summary) for each in page.runs))
    if is_live and pages.is_known(request, etag):
        return pages.unchanged(etag)
    attempts = failed_attempts(page.runs)
    rows = [
        Row(
            run=run,
            url=admin.url("change", run.id),
            explanation=explain(run, now),
            failed_attempts=attempts.get(run.id, 0),
            took=(run.finished_at or now) - run.created_at,
        )
        for run in page.runs
    ]
    context = {
        "title": "Runs",
        "now": now,
        "form": form,
        "problem": problem,
        "rows": rows,
        "page": page,
        "window": WINDOW,
        "next_query": _query(request.GET, after=page.next_cursor) if page.next_cursor else "",
        "first_query": _query(request.GET, after=None) if "after" in request.GET else "",
        "filter_query": _query(request.GET, after=None),
        "live_query": _query(request.GET, live="1"),
        "hidden": [(name, each) for name, values in request.GET.lists() if name not in _OWN for each in values],
        "groups": list(_groups(request.GET)),
        "is_filtered": bool(set(request.GET) - {"after"}),
        "verbs": [VERBS[name] for name in BULK] if access.may(request, "operate_run") else [],
        "bulk_url": admin.url("bulk"),
        "etag": etag,
    }
    return pages.tagged(admin.page(request, "_list" if is_live else "list", context), etag)


def _read(form: FilterForm, cursor: str | None) -> tuple[RunPage, str]:
    form.is_valid()  # an invalid field shows its own error, and is ignored
    try:
        return list_runs(parse_search(form.search, form.wanted()), cursor=cursor), ""
    except InvalidCursorError as error:
        return RunPage(runs=[]), str(error)


def _groups(given: QueryDict) -> Iterator[Group]:
    yield Group(title="state", choices=[_toggle(given, "state", each.value) for each in RunState])
    undone = [_choice(given, "undone", "", "All"), _choice(given, "undone", "1", "undone")]
    yield Group(title="compensation", choices=undone)
    workflows = [each.name for each in registry.all()][:_MOST_CHOICES]
    yield Group(title="workflow", choices=_one_of(given, "workflow", workflows, "All"))
    yield Group(title="queue", choices=_one_of(given, "queue", queue_names()[:_MOST_CHOICES], "All"))
    since = [_choice(given, "since", value, title) for value, title in _SINCE.items() if not value or value in SINCE]
    yield Group(title="creation", choices=since)
    if waiting := given.get("waiting"):
        yield Group(title="awaited message", choices=_one_of(given, "waiting", [waiting], "All"))
    for name in ("cause", "place"):
        if chosen := given.get(name):
            yield Group(title=name, choices=_one_of(given, name, [chosen], "All"))


def _one_of(given: QueryDict, name: str, values: Sequence[str], all_of_them: str) -> list[Choice]:
    chosen = given.get(name, "")
    known = list(dict.fromkeys([*values, *([chosen] if chosen else [])]))
    return [_choice(given, name, "", all_of_them), *(_choice(given, name, each, each) for each in known)]


def _choice(given: QueryDict, name: str, value: str, title: str) -> Choice:
    return Choice(
        title=title, query=_query(given, after=None, **{name: value}), is_selected=given.get(name, "") == value
    )


def _toggle(given: QueryDict, name: str, value: str) -> Choice:
    chosen = given.getlist(name)
    is_selected = value in chosen
    changed = [each for each in chosen if each != value] if is_selected else [*chosen, value]
    title = value.replace("_", " ")
    return Choice(title=title, query=_query(given, after=None, **{name: changed}), is_selected=is_selected)


def _query(given: QueryDict, **changes: Any) -> str:
    """Return the URL's query with some parameters set, or removed if the value is empty."""
    query = given.copy()
    query.pop("live", None)
    for name, value in changes.items():
        query.pop(name, None)
        if isinstance(value, list):
            query.setlist(name, value)
        elif value:
            query[name] = value
    return f"?{query.urlencode()}"
