"""The queues, the workers and the database: a page of all queues, one of all workers, a page of each, and one of the
database beside its mark (`durable.marks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import access, pages
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.inspection.activities import activities_of_runs
from durable.inspection.explain_states import LATE, Explanation
from durable.inspection.explanation import explain
from durable.inspection.humanize import byte_size, span
from durable.inspection.queues import WINDOW, QueueSummary, list_queues
from durable.inspection.reading import read_alias
from durable.inspection.restored import restored_database
from durable.inspection.wording import command, worker_command
from durable.inspection.workers import WorkerState, deaths_of, find_worker, worker_overview
from durable.models import Run
from durable.operations.audit import PERMISSIONS

#: By state, the class of its colour and its words.
_WORDS: Final[dict[str, tuple[str, str | Promise]]] = {
    "busy": ("run", _("busy")),
    "idle": ("good", _("idle")),
    "stopping": ("wait", _("handing over")),
    "dead": ("bad", _("dead: no sign")),
    "unknown": ("idle", _("unknown")),
}


def _shown_worker(admin: AdminPages, worker: WorkerState, now: datetime) -> dict[str, Any]:
    """Return a worker as pages show it: the class and the word of its state, and lengths and sizes in words."""
    tint, word = _WORDS.get(worker.state, ("idle", worker.state))
    is_up = worker.started_at is not None and not worker.is_dead
    return {
        "worker": worker,
        "busy": len(worker.runs),  # the number of its slots that are in use
        "url": admin.url("worker", worker.name),
        "tint": f"durable-{tint}",
        "word": word,
        "up": span((now - worker.started_at).total_seconds()) if is_up and worker.started_at else "",
        "memory": "" if worker.memory is None else byte_size(worker.memory),
    }


def show_workers(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the workers, dead ones last."""
    now, found = pages.now(), worker_overview()
    context = {
        "title": _("Workers"),
        "found": found,
        "workers": [_shown_worker(admin, each, now) for each in found.workers],
        "dead": sum(each.is_dead for each in found.workers),
    }
    return admin.page(request, "workers", context)


def show_worker(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show one worker and the runs that it holds."""
    now, name = pages.now(), as_id(key)
    worker = find_worker(name)
    if worker is None:
        raise Http404(
            gettext(
                'There is no worker "%(worker)s". It has ended, or it died more than an hour ago: then no row is left of it.'
            )
            % {"worker": name}
        )
    context = {
        "title": gettext("%(host)s, process %(pid)d") % {"host": worker.host, "pid": worker.pid},
        "each": _shown_worker(admin, worker, now),
        "rows": _rows(worker, now),
        "deaths": deaths_of(name),
    }
    return admin.page(request, "worker", context)


def _rows(worker: WorkerState, now: datetime) -> list[tuple[Run, Explanation]]:
    """Return the runs that the worker holds, each with its current step."""
    found = Run.objects.using(read_alias()).defer("input", "output").in_bulk([each.id for each in worker.runs])
    running = activities_of_runs(found.values(), now, with_usual=True)
    runs = [found[each.id] for each in worker.runs if each.id in found]
    return [(run, explain(run, now, running=running[run.id])) for run in runs]


OLDEST = 10  # due runs on the page of a queue


def show_queues(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the queues."""
    now = pages.now()
    workers, everyone = worker_overview(), pages.with_everyone()
    context = {
        "title": _("Queues"),
        "problem": workers.problem,
        "queues": [_shown(admin, each, now, everyone) for each in list_queues(now, workers)],
        "window": span(WINDOW.total_seconds()),
    }
    return admin.page(request, "queues", context)


def show_queue(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
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
        "problem": workers.problem,
        "each": _shown(admin, queue, now, pages.with_everyone()),
        "hold": queue.hold,
        "workers": [_shown_worker(admin, each, now) for each in queue.serving],
        "rows": _oldest(queue, now),
        "command": worker_command(name),
        "pause_url": admin.url("queue_hold", name, "pause"),
        "resume_url": admin.url("queue_hold", name, "resume"),
        "window": span(WINDOW.total_seconds()),
    }
    return admin.page(request, "queue", context)


def _shown(admin: AdminPages, queue: QueueSummary, now: datetime, everyone: Mapping[str, str]) -> dict[str, Any]:
    """Return a queue as pages show it. `latency` is how long the oldest due run has waited, in words."""
    tint, word = _state(queue, now)
    return {
        "queue": queue,
        "url": admin.url("queue", queue.name),
        "runs_url": f"{admin.url('changelist')}?{urlencode({'queue': queue.name, **everyone})}",
        "latency": "" if queue.oldest_due_at is None else span(max(0.0, (now - queue.oldest_due_at).total_seconds())),
        "tint": f"durable-{tint}",
        "word": word,
    }


def _state(queue: QueueSummary, now: datetime) -> tuple[str, object]:
    if queue.is_paused:
        return "paused", _("paused")
    if not queue.workers:
        return ("bad" if queue.due else "idle"), _("served by no worker")
    if queue.oldest_due_at is not None and now - queue.oldest_due_at > LATE:
        return "wait", _("late")
    return ("run", _("busy")) if queue.in_hand or queue.due else ("good", _("nothing is due"))


def _oldest(queue: QueueSummary, now: datetime) -> Sequence[tuple[Run, object]]:
    """Return the runs that have been due longest, each with what it waits for."""
    if not queue.due:
        return []
    runs = (
        Run.objects.using(read_alias())
        .due(now)
        .filter(queue=queue.name)
        .order_by("wake_at", "id")
        .defer("input", "output")
    )
    return [(run, explain(run, now, paused=queue.hold)) for run in runs[:OLDEST]]


def show_database(admin: AdminPages, request: HttpRequest, key: str | None = None) -> HttpResponse:
    """Show the database beside its mark. Raises Http404 if it has another name than the address."""
    now, within = pages.now(), access.within(request)
    found = restored_database(now, within)
    if key is not None and as_id(key) != found.name:
        raise Http404(gettext('This database does not have the name "%(name)s".') % {"name": as_id(key)[:64]})
    may_decide = bool(found.name) and access.may(request, PERMISSIONS["restored"])
    context = {
        "title": _("Database"),
        "found": found,
        "lost": span(found.lost.total_seconds()),
        "rows": [(run, explain(run, now, within=within)) for run in found.runs] if found.is_behind else [],
        "decide_url": admin.url("database_act", found.name, "restored") if may_decide else "",
        "command": command("restored"),
    }
    return admin.page(request, "database", context)
