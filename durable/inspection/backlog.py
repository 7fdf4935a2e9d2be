"""The backlog before a run that waits for a worker: runs of its queue that are due earlier, and busy workers."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from django.db.models import Q
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count
from durable.inspection.humanize import thousands
from durable.inspection.workers import DEAD_AFTER
from durable.models import Run, WorkerProcess

_CAP: Final = 1_000  # runs that are counted
_WORKERS: Final = 200  # that are looked at, those with the newest signs


def backlog_note(run: Run, now: datetime) -> str:
    """Return how many runs are due before this one, and how many workers of its queue are busy, without a full stop.

    "" for a run that no worker has to take now, and where nothing is before it. Three statements at most.
    """
    is_held = run.lease_expires_at is not None and run.lease_expires_at > now
    if run.wake_at is None or run.wake_at > now or is_held or run.state == RunState.PAUSED:
        return ""
    before = _before(run, now) if run.head_start is None else None  # those with a rank have an order of their own
    workers, busy = _workers(run.queue, now)
    said = []
    if before:
        said.append(_("Due before it: %(number)s of its queue") % {"number": before})
    if busy:
        told = {"busy": thousands(busy), "workers": thousands(workers)}
        said.append(_("%(busy)s of %(workers)s workers that serve its queue are busy") % told)
    return ". ".join(said)


def _before(run: Run, now: datetime) -> Count:
    due = Run.objects.using(conf.DATABASE).filter(queue=run.queue, wake_at__isnull=False)
    due = due.exclude(state=RunState.PAUSED.value).filter(wake_at__lte=run.wake_at)
    due = due.exclude(wake_at=run.wake_at, id__gte=run.id)
    free = due.filter(Q(lease_expires_at=None) | Q(lease_expires_at__lte=now)).order_by("queue", "wake_at", "id")
    number = free.values("pk")[: _CAP + 1].count()
    return Count(number=min(number, _CAP), is_capped=number > _CAP)


def _workers(queue: str, now: datetime) -> tuple[int, int]:
    """Return how many workers serve the queue, and how many of these execute as many runs as they can."""
    rows = WorkerProcess.objects.using(conf.DATABASE).filter(last_seen_at__gte=now - DEAD_AFTER)
    living = rows.exclude(state=WorkerProcess.State.STOPPING).order_by("-last_seen_at")[:_WORKERS]
    slots = {each.name: each.slots for each in living if each.serves_all or queue in each.queues}
    if not slots:
        return 0, 0
    held = Run.objects.using(conf.DATABASE).filter(lease_expires_at__gt=now, worker__in=list(slots))
    numbers = Counter(held.order_by("lease_expires_at").values_list("worker", flat=True)[:_CAP])
    return len(slots), sum(numbers[name] >= number for name, number in slots.items())
