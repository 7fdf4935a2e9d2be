"""The queues: a page of all, and one of each with its numbers, its workers and its verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import pages, workers_page
from durable.admin.base import AdminPages
from durable.admin.url_keys import as_id
from durable.conf import conf
from durable.inspection.explain_states import explain
from durable.inspection.explanation import LATE
from durable.inspection.humanize import span
from durable.inspection.queues import WINDOW, QueueSummary, list_queues
from durable.inspection.wording import worker_command
from durable.inspection.workers import worker_overview
from durable.models import Run

OLDEST = 10  # due runs on the page of a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQueue:
    """A queue as pages show it. `latency` is for how long the oldest run has been due, in words."""

    queue: QueueSummary
    url: str
    runs_url: str
    latency: str
    tint: str
    word: object


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the queues."""
    now = pages.now()
    workers, everyone = worker_overview(), pages.with_everyone()
    context = {
        "title": _("Queues"),
        "now": now,
        "problem": workers.problem,
        "queues": [_shown(admin, each, now, everyone) for each in list_queues(now, workers)],
        "window": span(WINDOW.total_seconds()),
    }
    return admin.page(request, "queues", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one queue."""
    now, name = pages.now(), as_id(key)
    workers = worker_overview()
    found = list_queues(now, workers, name=name)
    if not found:
        raise Http404(
            gettext('There is no queue "%(queue)s": no worker, no setting and no waiting run has it.') % {"queue": name}
        )
    [queue] = found
    context = {
        "title": name,
        "now": now,
        "problem": workers.problem,
        "each": _shown(admin, queue, now, pages.with_everyone()),
        "hold": queue.hold,
        "workers": workers_page.shown_workers(admin, queue.serving, now),
        "rows": _oldest(queue, now),
        "command": worker_command(name),
        "pause_url": admin.url("queue_hold", name, "pause"),
        "resume_url": admin.url("queue_hold", name, "resume"),
        "window": span(WINDOW.total_seconds()),
    }
    return admin.page(request, "queue", context)


def _shown(admin: AdminPages, queue: QueueSummary, now: datetime, everyone: Mapping[str, str]) -> ShownQueue:
    tint, word = _state(queue, now)
    latency = "" if queue.oldest_due_at is None else span(max(0.0, (now - queue.oldest_due_at).total_seconds()))
    return ShownQueue(
        queue=queue,
        url=admin.url("queue", queue.name),
        runs_url=f"{admin.url('changelist')}?{urlencode({'queue': queue.name, **everyone})}",
        latency=latency,
        tint=f"durable-{tint}",
        word=word,
    )


def _state(queue: QueueSummary, now: datetime) -> tuple[str, object]:
    if queue.is_paused:
        return "paused", _("paused")
    if not queue.workers:
        return ("bad" if queue.due else "idle"), _("served by no worker")
    if queue.oldest_due_at is not None and now - queue.oldest_due_at > LATE:
        return "wait", _("late")
    return ("run", _("busy")) if queue.in_hand or queue.due else ("good", _("nothing is due"))


def _oldest(queue: QueueSummary, now: datetime) -> Sequence[tuple[Run, object]]:
    """Return the runs that have been due for longest, and what each waits for."""
    if not queue.due:
        return []
    runs = (
        Run.objects.using(conf.DATABASE)
        .due(now)
        .filter(queue=queue.name)
        .order_by("wake_at", "id")
        .defer("input", "output")
    )
    return [(run, explain(run, now, paused=queue.hold)) for run in runs[:OLDEST]]
