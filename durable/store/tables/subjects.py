"""What runs are about, in a database: written by starts, read by deletions and by runs that replace another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from durable.core.new_runs import NewRun, Subject
from durable.core.records import ENDED, RunRecord
from durable.models import RunSubject

_AT_ONCE: Final = 1_000  # rows of one statement
_ENDED: Final = sorted(state.value for state in ENDED)


def with_subjects(runs: Iterable[RunRecord]) -> list[NewRun]:
    """Return the runs whose starts say what they are about."""
    return [run for run in runs if isinstance(run, NewRun) and run.subjects]


def put(alias: str, runs: Sequence[NewRun], *, is_retried: bool = False) -> None:
    """Write what new runs are about, in the transaction of their creation. `is_retried`: an earlier try may have
    written it.

    If a new run already has a row, it was left by a deleted run with the same id.
    """
    rows = [
        RunSubject(run_id=run.id, model=each.model, object_pk=each.key, cancels=each.cancels, created_at=run.created_at)
        for run in runs
        for each in run.subjects
    ]
    if is_retried:
        RunSubject.objects.using(alias).bulk_create(rows, batch_size=_AT_ONCE, ignore_conflicts=True)
        return
    RunSubject.objects.using(alias).bulk_create(
        rows,
        batch_size=_AT_ONCE,
        update_conflicts=True,
        update_fields=["cancels", "created_at"],
        unique_fields=["run", "model", "object_pk"],
    )


def of_runs(alias: str, run_ids: Sequence[str]) -> dict[str, list[Subject]]:
    """Return what the runs are about that were started about something, in the order in which it was given."""
    found: dict[str, list[Subject]] = {}
    rows = RunSubject.objects.using(alias).filter(run_id__in=run_ids).order_by("run_id", "id")
    for row in rows:
        found.setdefault(row.run_id, []).append(row.record)
    return found


def to_cancel(alias: str, model: str, keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the open runs that are cancelled when one of these instances is deleted, by its key, oldest first."""
    found: dict[str, list[str]] = {}
    rows = RunSubject.objects.using(alias).filter(model=model, object_pk__in=keys, cancels=True)
    rows = rows.exclude(run__state__in=_ENDED).order_by("created_at", "run_id")
    for key, run_id in rows.values_list("object_pk", "run_id"):
        found.setdefault(key, []).append(run_id)
    return found
