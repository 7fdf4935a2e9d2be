"""A run's page: its state, its parents and children, what it waits for, its verbs, one of its parts (`run_parts`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from durable.admin import access, pages
from durable.admin.inbox_page import cards_of_run
from durable.admin.overview import children_url
from durable.admin.pages import AdminPages
from durable.admin.run_buttons import buttons_of
from durable.admin.run_parts import Shown, part_of, parts_of
from durable.admin.subjects import shown_about
from durable.admin.text import as_id, downloaded
from durable.carriers import unread
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.core.records import ENDED, RunState
from durable.core.registry import BULK
from durable.inspection.bulks import order_words
from durable.inspection.causes import cause_of, runs_that_repeat
from durable.inspection.children import (
    CountedChildren,
    GroupCounts,
    count_children,
    is_child,
    list_children,
    list_parents,
    recovered_later,
)
from durable.inspection.events import newest_line
from durable.inspection.explanation import explain_fully
from durable.inspection.export import written
from durable.inspection.forks import first_failed_branch
from durable.inspection.held import waits_for_person
from durable.inspection.humanize import printable, thousands, visible
from durable.inspection.payloads import of_stream
from durable.inspection.progress import Progress, progress_of
from durable.inspection.run_facts import (
    carried_lines,
    key_note,
    key_of,
    limits_of,
    rank_of,
    rank_words,
    share_words,
    tags_of,
    work_words,
)
from durable.inspection.schedules import tick_of
from durable.inspection.shown import status_of
from durable.inspection.wording import command, display_location
from durable.instrumentation.tracing import trace_id_of
from durable.models import Run
from durable.models.run import RunQuerySet
from durable.notifier.chunks import Stream, emitting
from durable.streams import reading

WIDTH: Final = 1_000  # of the drawing's viewBox
_NAMED: Final = 3  # failed children
_MOST_GROUPS: Final = 8
_FAILED: Final = RunState.FAILED.value
_MOST_STREAMS: Final = 3  # running steps whose chunks are shown
_MOST_CHUNKS: Final = 500  # of one answer; of more the newest
_MOST_OF_CHUNK: Final = 2_000  # characters
#: By state, from left to right: ended well, under way, ended badly.
_FILLS: Final = {
    "completed": "good",
    "running": "run",
    "rolling_back": "undo",
    "pending": "wait",
    "sleeping": "wait",
    "paused": "idle",
    "cancelled": "idle",
    "failed": "bad",
}


def relatives_of(
    admin: AdminPages, run: Run, children: CountedChildren, within: RunQuerySet | None = None
) -> dict[str, Any]:
    """Return the data about the run's parents and children; a few more statements if it has parents or failed children.

    `within` limits it to the runs that a user may see. Then no recovery with children is offered, because that acts on
    all of it.
    """
    failed = list_children(run.id, states=[_FAILED], limit=_NAMED, within=within).rows if children.failed else []
    groups = [each for each in children.groups if each.name] and children.groups
    parents = list_parents(run, within)
    # the parent stays failed if only the child is recovered
    have_failed = bool(parents) and run.state == parents[-1].state == _FAILED
    is_both = within is None and have_failed and is_child(run.id)
    return {
        "parents": [(each, admin.url("change", each.id)) for each in parents],
        "recover_parent_url": children_url(parents[-1].id, admin.admin_site.name) if is_both else "",
        "children": children if children else None,
        "child_shares": _shares(GroupCounts(name="", states=children.states)),
        "child_groups": [
            {"name": each.name, "total": thousands(each.total), "url": _url("", each.name), "shares": _shares(each)}
            for each in groups[:_MOST_GROUPS]
        ],
        "more_groups": max(0, len(groups) - _MOST_GROUPS),
        "failed_children": [(each.run, admin.url("change", each.run.id)) for each in failed],
        "failed_children_url": _url(_FAILED, ""),
        "more_failed": max(0, children.failed.number - len(failed)),
        "recovered_later": recovered_later(run, within) if children else None,
        "recover_children_url": children_url(run.id, admin.admin_site.name) if within is None else "",
    }


def _shares(counts: GroupCounts) -> list[dict[str, str]]:
    """Return each state's part of the bar, in units of the viewBox, and the address of the list of its children."""
    shares: list[dict[str, str]] = []
    x = 0.0
    for state in _FILLS:
        number = counts.states.get(state, 0)
        if not number:
            continue
        width = number / counts.total * WIDTH
        shares.append(
            {
                "state": state,
                "number": thousands(number),
                "url": _url(state, counts.name),
                "fill": _FILLS[state],
                "x": f"{x:.1f}",
                "width": f"{max(width, 4.0):.1f}",
            }
        )
        x += width
    return shares


def _url(state: str, group: str) -> str:
    chosen = {name: value for name, value in (("state", state), ("group", group)) if value}
    return f"?{urlencode({'part': 'children', **chosen})}"


def lead(admin: AdminPages, _request: HttpRequest, key: str) -> HttpResponse:
    """Redirect a URL with just the id to the run's page."""
    return HttpResponseRedirect(admin.url("change", as_id(key)))


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the whole page."""
    run = pages.find(request, key)
    now = pages.now()
    progress, children = progress_of(run, now), count_children(run.id, access.within(request))
    context = _context(admin, request, run, progress, children, now, _emitting(request, run, progress))
    # beside the part that is renewed, which would lose what somebody writes
    return admin.page(request, "run", {**context, "questions_asked": cards_of_run(admin, request, run)})


def live(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Return the part of the page that changes, or 304 if nothing has changed."""
    run = pages.find(request, key)
    now = pages.now()
    progress, children = progress_of(run, now), count_children(run.id, access.within(request))
    streams = _emitting(request, run, progress)
    etag = _etag(request, run, progress, children, now, streams)
    if pages.is_known(request, etag):
        return pages.unchanged(etag)
    context = _context(admin, request, run, progress, children, now, streams)
    return pages.tagged(admin.page(request, "_run", context), etag)


def export(_admin: AdminPages, request: HttpRequest, key: str) -> HttpResponseBase:
    """Return all records of the run, as a JSON file that is written while it is sent."""
    run = pages.find(request, key)
    pieces = written(run, with_payloads=access.may(request, "view_payload"), indent=1, within=access.within(request))
    return downloaded(request, pieces, f"run-{run.id}.json")


def stream(_admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Return what the step at the location `at` has emitted since the browser's last look, as server-sent events.

    The answer ends with what there is, and the browser asks again a second later. So a page keeps no connection open,
    and each answer is for a user who may see payloads.
    """
    run = pages.find(request, key)
    access.demand(request, "view_payload")
    location, after = request.GET.get("at", ""), request.headers.get("Last-Event-ID") or request.GET.get("after", "")
    if after == reading.END or not conf.REDIS:
        return HttpResponse(status=204)  # an EventSource does not ask again then
    found: list[reading.Chunk] = []
    with suppress(RunNotFoundError):  # it was pruned meanwhile, or a test's transaction has it
        found = reading.newest(run.id, location, after, _MOST_CHUNKS)
    shown = (replace(each, value=_cut(of_stream(run.workflow, location, each.event, each.value))) for each in found)
    return HttpResponse(reading.encoded(shown), content_type=reading.EVENT_STREAM, headers=reading.HEADERS)


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else f"{json.dumps(value, ensure_ascii=False)}\n"
    return visible(printable(text[:_MOST_OF_CHUNK]))


def _emitting(request: HttpRequest, run: Run, progress: Progress) -> Sequence[str]:
    """Return the locations of the first running steps that emit, for a user who may see that; one look into Redis."""
    steps = [each.location for each in progress.running if not (each.is_rollback or each.left)][:_MOST_STREAMS]
    if not (steps and access.may(request, "view_payload")):
        return ()
    return [each.location for each in emitting(run.queue, [Stream(run.id, location) for location in steps])]


def _context(
    admin: AdminPages,
    request: HttpRequest,
    run: Run,
    progress: Progress,
    children: CountedChildren,
    now: datetime,
    streams: Sequence[str],
) -> dict[str, Any]:
    wall = ((run.finished_at or now) - run.created_at).total_seconds()
    within = access.within(request)
    explanation = explain_fully(
        run, now, progress.open_keys, children, within=within, with_payloads=access.may(request, "view_payload")
    )
    running = progress.running
    limits, status = limits_of(run), status_of(run)
    key, ranking = key_of(run), rank_of(run)
    bulk = access.find_bulk(request, run.id) if run.workflow == BULK else None
    has_order = bulk is not None and bulk.order is not None and access.may(request, "view_payload")
    parts, shown = parts_of(
        Shown(admin=admin, request=request, run=run, progress=progress, now=now, running=running, children=children)
    )
    return {
        "title": _("Run %(run)s") % {"run": run.id},
        "run": run,
        "is_held": waits_for_person(run),
        "is_ended": run.state in ENDED and children.is_settled,
        "explanation": explanation,
        "status": status,
        "expected": "" if status is None else status.expected(now),
        "explained_at": display_location(explanation.location),
        "cause": cause_of(run, within),
        "failed_branch": first_failed_branch(run),
        "repeated_by": runs_that_repeat(run, within),
        "trace_url": _trace_url(run),
        "running": running,
        "streams": streams,
        "stream_url": admin.url("stream", run.id),
        "progress": progress,
        "bulk": bulk,
        "bulk_url": "" if bulk is None else admin.url("bulk_result", run.id),
        "order": order_words(bulk.order, bulk.began_at) if bulk is not None and has_order else "",
        "limits": limits,
        "key": key,
        "tags": tags_of([run])[run.id],
        "about": shown_about(admin, request, run),
        "carried": carried_lines(run) if access.may(request, "view_payload") else [],
        "carried_unread": unread(run.carried),
        "priority": "" if ranking is None else rank_words(ranking),
        "share": "" if ranking is None else share_words(ranking),
        "tick": tick_of(run.id),
        "existing": access.existing(request, [run.parent_id, run.replay_of_id]),
        "key_note": "" if key is None else key_note(key, now),
        "work": "" if limits is None else work_words(limits),
        "wall": wall,
        "waited": wall - progress.active if wall >= progress.active else None,  # branches work side by side
        "buttons": buttons_of(admin, request, run, now, explanation, running),
        "parts": parts,
        **shown,
        **relatives_of(admin, run, children, within),
        "step_url": admin.url("step", run.id),
        "replay_url": admin.url("replay", run.id),
        "export_url": admin.url("export", run.id),
        "live_url": admin.url("live", run.id),
        "live_query": request.GET.urlencode(),
        "etag": _etag(request, run, progress, children, now, streams),
        "copies": [
            *([explanation.command] if explanation.command else []),
            *([command("recover", children_of=run.id)] if children.failed else []),
            *(command(each, run.id) for each in ("show", "why", "export")),
        ],
    }


def _etag(
    request: HttpRequest, run: Run, progress: Progress, children: CountedChildren, now: datetime, streams: Sequence[str]
) -> str:
    lines = newest_line(run) if part_of(request) == "logs" else None
    status = status_of(run)
    said = None if status is None else status.revision
    return pages.etag_of(now, progress.revision, request.GET.urlencode(), lines, children, said, *streams)


def _trace_url(run: Run) -> str:
    return conf.TRACE_URL.format(trace_id=trace_id_of(run.id), run_id=quote(run.id, safe="")) if conf.TRACE_URL else ""
