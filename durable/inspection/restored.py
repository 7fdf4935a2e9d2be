"""What operators see of a database that went back in time: how far, and which of its open runs do things again.

What the lost time has brought is not in the database. What can be shown is which open runs were due before the mark was
written: while workers ran, each of them has moved since. Runs that were due later have moved only if a message or a
verb came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable import marks, runtime
from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.inspection.counting import Count, added, count_capped
from durable.models import Run
from durable.models.run import RunQuerySet

CAP: Final = 1_000  # runs to count
SHOWN: Final = 50  # runs that are listed
_OPEN: Final = [state.value for state in RunState if state not in ENDED and state != RunState.PAUSED]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDatabase:
    """The database beside its mark.

    `name` is "" before the first sweep. `as_of` is the last moment of the sweep in the database, `mark_at` that of the
    mark. `open` counts the open runs that are not paused, `moved` those of them that were due before the mark was
    written; `runs` are the first of these, the longest due first. `went_back_from` and `went_back_to` are the moments
    of the last decision, made at `decided_at`.
    """

    name: str
    place: str
    mark_in: str
    is_kept: bool
    problem: str
    is_behind: bool
    is_another_history: bool
    is_holding: bool
    as_of: datetime | None
    mark_at: datetime | None
    mark_place: str
    mark_by: str
    lost: timedelta
    open: Count
    moved: Count
    runs: Sequence[Run]
    went_back_from: datetime | None
    went_back_to: datetime | None
    decided_at: datetime | None
    revision: str


def restored_database(now: datetime, within: RunQuerySet | None) -> RestoredDatabase:
    """Return what is known of the database beside its mark, and of the runs that it concerns."""
    found = marks.look()
    row, mark = found.row, found.mark
    is_behind = found.is_behind
    until = mark.at if is_behind and mark is not None else now
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    queues = runtime.current().store.due_queues(until)
    waiting = runs.filter(wake_at__isnull=False, wake_at__lte=until).exclude(state=RunState.PAUSED.value)
    due = [waiting.filter(queue=queue).order_by("wake_at", "id") for queue in queues]
    opened = count_capped([runs.filter(state=state).newest_first() for state in _OPEN], CAP)
    first = sorted((run for each in due for run in each[:SHOWN]), key=lambda run: (run.wake_at or until, run.id))
    return RestoredDatabase(
        name="" if row is None else row.name,
        place=marks.place_of_database(),
        mark_in=marks.place_of_mark(),
        is_kept=marks.is_kept(),
        problem=found.problem,
        is_behind=is_behind,
        is_another_history=found.is_another_history,
        is_holding=found.is_holding,
        as_of=None if row is None else row.written_at,
        mark_at=None if mark is None else mark.at,
        mark_place="" if mark is None else mark.place,
        mark_by="" if mark is None else mark.by,
        lost=found.lost if is_behind else timedelta(),
        open=added(opened, CAP),
        moved=added(count_capped(due, CAP), CAP) if due else Count(number=0),
        runs=first[:SHOWN],
        went_back_from=None if row is None else row.went_back_from,
        went_back_to=None if row is None else row.went_back_to,
        decided_at=None if row is None else row.decided_at,
        revision=marks.revision_of(row),
    )
