"""The failed runs that a user may see: among the newest of all, or all of them if the user's own are few.

One window of everybody's failed runs serves all causes. To look through those of each cause would take longer with each
failure that the user may not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.pagination import RunOrder
from durable.inspection.visible_window import end_of_window
from durable.models import Failure, Run
from durable.models.history import KeyIn
from durable.models.run import RunQuerySet


class VisibleFailure(NamedTuple):
    """The failure of a run."""

    cause_id: int
    run_id: str
    workflow: str
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class VisibleFailures:
    """The failures by the key of their cause, the newest first. `is_cut`: there may be more, of older runs."""

    by_cause: Mapping[int, Sequence[VisibleFailure]]
    is_cut: bool


def visible_failures(within: RunQuerySet, size: int) -> VisibleFailures:
    """Return why these runs are failed; at most three statements.

    They are those among the newest `size` failed runs, or all of them if they are few.
    """
    everyone: RunQuerySet = Run.objects.using(conf.DATABASE)
    end = end_of_window(_failed(everyone), within, RunOrder.NEWEST, size, "created_at")
    runs = _failed(within) if end is None else _failed(within).filter(end.up_to(RunOrder.NEWEST.key))
    found = Failure.objects.using(conf.DATABASE).filter(KeyIn("run", runs.order_by().values("pk")), is_open=True)
    by_cause: dict[int, list[VisibleFailure]] = {}
    for row in found.order_by("-failed_at", "-run_id").values_list(*VisibleFailure._fields):
        by_cause.setdefault(row[0], []).append(VisibleFailure(*row))
    return VisibleFailures(by_cause, is_cut=end is not None)


def _failed(runs: RunQuerySet) -> RunQuerySet:
    return runs.filter(state=RunState.FAILED.value).newest_first()
