"""The queues: what is due in each and for how long, what is in hand, what comes in and goes out, and who serves it.

A constant number of statements, each along an index and with a cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet

from durable.conf import conf
from durable.core.records import Hold
from durable.inspection.capped_counts import Count, count_capped, moment_of, sample_rows
from durable.inspection.holds import paused_queues
from durable.inspection.humanize import decimal
from durable.inspection.workers import QueueState, Workers, WorkerState, serving, worker_overview
from durable.models import Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP: Final = 10_000  # due runs that are counted
SAMPLE: Final = 1_000  # of the newest runs, and of those that ended last, from which the rates are taken
WINDOW: Final = timedelta(minutes=10)  # at most, over which a rate is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The flow of runs into or out of a queue, in runs a minute.

    It is computed from the newest `SAMPLE` runs of all queues within `WINDOW`.
    """

    per_minute: float

    def __str__(self) -> str:
        if 0 < self.per_minute < 0.1:
            return f"< {decimal(0.1)}"
        return decimal(self.per_minute, 1 if 0 < self.per_minute < 10 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """A queue. The longest of its `due` runs has been due since `oldest_due_at`. `in_hand` runs are being executed.

    `is_known`: it is one of the project's, `has_runs`: runs of it will wake, or are held, `has_workflows`: it is one's.

    `came` are runs that were created, `went` those that have ended. `serving` are the workers that take its runs.
    """

    name: str
    is_known: bool
    has_runs: bool
    has_workflows: bool
    due: Count
    oldest_due_at: datetime | None
    in_hand: Count
    came: Flow
    went: Flow
    serving: Sequence[WorkerState]
    hold: Hold | None

    @property
    def workers(self) -> int:
        """The number of workers that take its runs."""
        return len(self.serving)

    @property
    def is_paused(self) -> bool:
        """Whether its runs are not claimed because an operator has paused it."""
        return self.hold is not None


def list_queues(
    now: datetime, workers: Workers | None = None, *, name: str | None = None, within: RunQuerySet | None = None
) -> list[QueueSummary]:
    """Return the queues of the project, of runs and of holds; with `name` that one, if it is one of them.

    `workers` is the result of `worker_overview(within)`, which a page also shows. Five statements beside it. With
    `within`, a set of runs, numbers are of these, and a paused queue that neither the project nor these runs name is
    left out.
    """
    workers = worker_overview(within) if workers is None else workers
    paused = paused_queues()
    states = {each.name: each for each in workers.queues}
    for each in paused if within is None else ():
        states.setdefault(each, _unknown(each))
    chosen = [each for each in states.values() if name in (None, each.name)]
    if not chosen:
        return []
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    due: list[QuerySet[Any]] = [runs.due(now).filter(queue=each.name).order_by("wake_at", "id") for each in chosen]
    counts, oldest = count_capped(due, CAP), sample_rows(due, ["wake_at"], 1)
    [held] = sample_rows([runs.filter(lease_expires_at__gt=now).order_by("lease_expires_at")], ["queue"], SAMPLE)
    in_hand = Counter(unpack(queue) for (queue,) in held)
    begin = now - WINDOW
    came = _rates(runs.filter(created_at__gte=begin).order_by("-created_at", "-id"), "created_at", now)
    went = _rates(runs.filter(finished_at__gte=begin).order_by("-finished_at"), "finished_at", now)
    return [
        QueueSummary(
            name=each.name,
            is_known=each.is_known,
            has_runs=each.has_runs,
            has_workflows=each.has_workflows,
            due=count,
            oldest_due_at=moment_of(rows[0][0]) if rows else None,
            in_hand=Count(number=in_hand[each.name], is_capped=len(held) >= SAMPLE),
            came=Flow(per_minute=came.get(each.name, 0.0)),
            went=Flow(per_minute=went.get(each.name, 0.0)),
            serving=serving(workers.workers, each.name),
            hold=paused.get(each.name),
        )
        for each, count, rows in zip(chosen, counts, oldest, strict=True)
    ]


def _rates(runs: QuerySet[Any], column: str, now: datetime) -> dict[str, float]:
    """Return runs a minute by queue, over the time that the sample covers."""
    [rows] = sample_rows([runs], ["queue", column], SAMPLE)
    if not rows:
        return {}
    covered = now - moment_of(rows[-1][1]) if len(rows) >= SAMPLE else WINDOW
    minutes = max(covered.total_seconds(), 1.0) / 60
    return {unpack(queue): number / minutes for queue, number in Counter(queue for queue, _ in rows).items()}


def _unknown(name: str) -> QueueState:
    return QueueState(name=name, workers=0, is_known=False, has_runs=False, has_workflows=False)
