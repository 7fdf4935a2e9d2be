"""Conditions on runs that no index serves alone, and the few runs that the small indexes hold.

The indexes on leases, on due runs and on diverged runs hold few runs as long as all goes well. A list takes its runs
from them while they do (`few_diverged`, `few_attended`); else it looks through a window of the runs by state.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.db.models import OuterRef, Q, Subquery
from django.db.models.lookups import Exact, IsNull

from durable.conf import conf
from durable.core.bulk_runs import INTERNAL
from durable.core.location import ANY_QUEUE, escape
from durable.core.records import ENDED, RunState
from durable.core.summary import SummaryKind
from durable.inspection.capped_counts import sample_rows
from durable.inspection.explanation import LATE
from durable.inspection.workers import queues_with_runs
from durable.models import Child, Failure, Run
from durable.models.run import RunQuerySet

FEW: Final = 1_000  # runs of a small index that a list takes from it

_FAILED: Final = RunState.FAILED.value
_RUNNING: Final = RunState.RUNNING.value

#: The states of the runs that a worker may have, or has had when they failed.
WORKED_ON: Final = frozenset({_RUNNING, RunState.ROLLING_BACK.value, _FAILED})

#: The workers' code does not fit the run: it is tried again for a while, or has failed because of that.
DIVERGED: Final = Q(diverged_at__isnull=False) | Q(
    state=_FAILED, error__startswith='{"type": "HistoryDivergedError"', error__isnull=False
)

#: A rollback handler has failed for good, and the compensation has stopped.
STUCK: Final = Q(state=_FAILED) & (
    ~Q(state_after_rollback="") | Q(summary__startswith=f'{{"kind":"{SummaryKind.HANDLER_FAILED.value}"')
)

#: Runs that are not durable's own, as those of bulks and alerts are, and failed ones.
NO_ALERT: Final = ~Q(workflow__startswith=INTERNAL) | Q(state=_FAILED)

#: No child: no run has started it, or a step of one has. A subquery for each run that has a parent: PostgreSQL might
#: read the table of all children for an EXISTS beside an OR.
ROOT: Final = Q(parent__isnull=True) | Q(
    IsNull(Subquery(Child.objects.filter(run=OuterRef("pk")).values("pk")[:1]), rhs=True)
)


def waiting_for(queue: str) -> Q:
    """Return the condition for runs that wait for a message of the queue, or of any."""
    waits = Q(waiting_for=ANY_QUEUE) | Q(waiting_for__contains=f"/{escape(queue)}/")
    return ~Q(state=_RUNNING) & waits  # the row of a running one still has what it waited for


def of_worker(worker: str) -> Q:
    """Return the condition for runs that the worker has, and for those that failed on it and are still failed.

    The failure is looked up for each examined run: as a join, PostgreSQL might read the table of all failures.
    """
    failure = Failure.objects.filter(run=OuterRef("pk"), is_open=True).values("worker")[:1]
    return Q(worker=worker) | (Q(state=_FAILED) & Q(Exact(Subquery(failure), worker)))


def needing_attention(now: datetime) -> Q:
    """Return the condition for runs that do not go on well without a person, as `explain` tells it of their rows."""
    return Q(state=_FAILED) | (~Q(state__in=_ENDED) & (Q(diverged_at__isnull=False) | _overdue(now) | _lost(now)))


def few_attended(now: datetime) -> Sequence[str] | None:
    """Return the ids of the open runs that need attention; None for more than `FEW` in an index.

    Two statements.
    """
    runs: RunQuerySet = Run.objects.using(conf.DATABASE)
    late = runs.filter(wake_at__isnull=False).exclude(state=RunState.PAUSED.value).filter(_overdue(now))
    diverged = runs.filter(diverged_at__isnull=False).exclude(state__in=_ENDED).order_by("diverged_at")
    leased = runs.filter(_lost(now), lease_expires_at__isnull=False).order_by("lease_expires_at")
    due = [late.filter(queue=queue).order_by("wake_at", "id") for queue in queues_with_runs()]
    return _few([diverged, leased, *due])


def few_diverged() -> Sequence[str] | None:
    """Return the ids of the open runs that have diverged; None for more than `FEW`. One statement."""
    runs: RunQuerySet = Run.objects.using(conf.DATABASE)
    return _few([runs.filter(diverged_at__isnull=False).exclude(state__in=_ENDED).order_by("diverged_at")])


def _few(indexes: Sequence[RunQuerySet]) -> Sequence[str] | None:
    found = [[run_id for (run_id,) in rows] for rows in sample_rows(indexes, ["id"], FEW + 1)]
    if any(len(each) > FEW for each in found):
        return None
    return list(dict.fromkeys(run_id for each in found for run_id in each))


def _overdue(now: datetime) -> Q:
    unheld = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    return unheld & ~Q(state__in=[RunState.PAUSED.value, _RUNNING]) & Q(wake_at__lt=now - LATE)


def _lost(now: datetime) -> Q:
    return Q(state=_RUNNING) & (Q(lease_expires_at__lt=now - LATE) | Q(crashes__gt=1))


_ENDED: Final = sorted(each.value for each in ENDED)
