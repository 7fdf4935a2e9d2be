"""The workers: a page of all, and one of each with what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin import pages
from durable.admin.base import AdminPages
from durable.admin.url_keys import as_id
from durable.conf import conf
from durable.inspection.activities import activities_of_runs
from durable.inspection.explain_states import explain
from durable.inspection.explanation import Explanation
from durable.inspection.humanize import byte_size, span
from durable.inspection.workers import WorkerState, deaths_of, find_worker, worker_overview
from durable.models import Run

#: By state, the class of its colour and its words.
_WORDS: Final[dict[str, tuple[str, str | Promise]]] = {
    "busy": ("run", _("busy")),
    "idle": ("good", _("idle")),
    "stopping": ("wait", _("handing over")),
    "dead": ("bad", _("dead: no sign")),
    "unknown": ("idle", _("unknown")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWorker:
    """A worker as pages show it: `tint` is the class of its state, `memory` and `up` are in words, "" if unknown."""

    worker: WorkerState
    url: str
    tint: str
    word: str | Promise
    up: str
    memory: str

    @property
    def queues(self) -> Sequence[str]:
        """The names of its queues."""
        return self.worker.queues

    @property
    def busy(self) -> int:
        """The number of its slots that are in use."""
        return len(self.worker.runs)


def shown_workers(admin: AdminPages, workers: Sequence[WorkerState], now: datetime) -> list[ShownWorker]:
    """Return the workers as pages show them."""
    return [_shown(admin, each, now) for each in workers]


def _shown(admin: AdminPages, worker: WorkerState, now: datetime) -> ShownWorker:
    tint, word = _WORDS.get(worker.state, ("idle", worker.state))
    is_up = worker.started_at is not None and not worker.is_dead
    return ShownWorker(
        worker=worker,
        url=admin.url("worker", worker.name),
        tint=f"durable-{tint}",
        word=word,
        up=span((now - worker.started_at).total_seconds()) if is_up and worker.started_at else "",
        memory="" if worker.memory is None else byte_size(worker.memory),
    )


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the workers, dead ones last."""
    now, found = pages.now(), worker_overview()
    context = {
        "title": _("Workers"),
        "now": now,
        "found": found,
        "workers": shown_workers(admin, found.workers, now),
        "dead": sum(each.is_dead for each in found.workers),
    }
    return admin.page(request, "workers", context)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
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
        "now": now,
        "each": _shown(admin, worker, now),
        "rows": _rows(worker, now),
        "deaths": deaths_of(name),
    }
    return admin.page(request, "worker", context)


def _rows(worker: WorkerState, now: datetime) -> list[tuple[Run, Explanation]]:
    """Return the runs that it holds, and what each does."""
    found = Run.objects.using(conf.DATABASE).defer("input", "output").in_bulk([each.id for each in worker.runs])
    running = activities_of_runs(found.values(), now, with_usual=True)
    runs = [found[each.id] for each in worker.runs if each.id in found]
    return [(run, explain(run, now, running=running[run.id])) for run in runs]
