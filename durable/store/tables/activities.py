"""Running steps in a database: which run now, what operators ask of them, and what they have saved.

PostgreSQL has one statement for `report` and one for `save_details` (`durable.store.postgres.sql`). The rest is rare,
hence ordinary ORM statements for both databases. Of two saves the later one stays. Must not decide which steps are
recorded: `durable.worker.activities` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Q

from durable.core.records import Activity, AskedOfActivity, RunRecord, SavedDetails
from durable.models import Activity as ActivityModel
from durable.models import Run, StepSave
from durable.store.tables.rows import ACTIVITY, SAVED
from durable.store.transactions import RowsLocked, impatient

FORGOTTEN: Final = 500  # rows that one call of `forget` deletes

_RESET: Final = {"stack_asked_at": None, "stack_taken_at": None, "stack": "", "abandon_asked_at": None}


def note(alias: str, begun: Sequence[Activity], ended: Sequence[Activity]) -> None:
    """Write the rows of activities that have begun, if the lease is still held, and delete those that have ended."""
    rows = ActivityModel.objects.using(alias)
    with impatient(alias):
        Run.objects.using(alias).lock_table()  # a transaction that reads first could not write beside a writer
        for each in ended:
            rows.filter(run_id=each.run_id, location=each.location, fence=each.fence).delete()
        held = _held(alias, begun)
        for each in begun:
            if (each.run_id, each.fence) not in held:
                continue
            values = {name: getattr(each, name) for name in ACTIVITY.names if name not in ("run_id", "location")}
            row, is_new = rows.get_or_create(run_id=each.run_id, location=each.location, defaults=values)
            if not is_new and row.fence <= each.fence:
                rows.filter(pk=row.pk).update(**values, **_RESET)


def asked(alias: str, run_ids: Sequence[str]) -> list[AskedOfActivity]:
    """Return what operators have asked of the activities of these runs."""
    wants_stack = Q(stack_asked_at__isnull=False, stack_taken_at__isnull=True)
    found = ActivityModel.objects.using(alias).filter(wants_stack | Q(abandon_asked_at__isnull=False))
    return [
        AskedOfActivity(
            run_id=each.run_id,
            location=each.location,
            attempt=each.attempt,
            fence=each.fence,
            stack=each.stack_asked_at is not None and each.stack_taken_at is None,
            abandon=each.abandon_asked_at is not None,
        )
        for each in found.filter(run_id__in=run_ids).order_by("pk")
    ]


def ask(
    alias: str, run: RunRecord, location: str, now: datetime, *, stack: bool = False, abandon: bool = False
) -> list[str]:
    """Ask about the activities of the run's lease, at one location or all; return their locations."""
    rows = ActivityModel.objects.using(alias).filter(run_id=run.id, fence=run.fence)
    rows = rows.filter(location=location) if location else rows
    asked = list(rows.order_by("began_at", "pk").values_list("location", flat=True))
    if stack:
        rows.update(stack_asked_at=now, stack_taken_at=None, stack="")
    if abandon:
        rows.filter(abandon_asked_at__isnull=True).update(abandon_asked_at=now)
    return asked


def answer_stack(alias: str, asked: AskedOfActivity, stack: str, now: datetime) -> None:
    """Store the stack of an activity, unless it has ended."""
    where = {"run_id": asked.run_id, "location": asked.location, "attempt": asked.attempt, "fence": asked.fence}
    with suppress(RowsLocked), impatient(alias):
        ActivityModel.objects.using(alias).filter(**where).update(stack=stack, stack_taken_at=now)


def forget(alias: str) -> None:
    """Delete rows whose workers have died or have lost the run, a bounded number for each call."""
    rows = ActivityModel.objects.using(alias)
    old = list(rows.left_over().order_by("began_at", "id").values_list("pk", flat=True)[:FORGOTTEN])
    if old:
        with suppress(RowsLocked), impatient(alias):
            rows.filter(pk__in=old).left_over().delete()


def _held(alias: str, begun: Sequence[Activity]) -> set[tuple[str, int]]:
    runs = Run.objects.using(alias).filter(id__in={each.run_id for each in begun}, lease_expires_at__isnull=False)
    return set(runs.order_by().values_list("id", "fence"))


_KEY = ["run", "location"]


def save(alias: str, saved: Sequence[SavedDetails]) -> None:
    """Write the saves of runs that are leased under their fence, if they are later than the stored ones."""
    rows = StepSave.objects.using(alias)
    with transaction.atomic(using=alias):
        Run.objects.using(alias).lock_table()  # a transaction that reads first could not write beside a writer
        runs = Run.objects.using(alias).filter(id__in={each.run_id for each in saved}, lease_expires_at__isnull=False)
        held = set(runs.order_by().values_list("id", "fence"))
        for each in saved:
            if (each.run_id, each.fence) not in held:
                continue
            row, is_new = rows.get_or_create(
                run_id=each.run_id, location=each.location, defaults=SAVED.attributes(each)
            )
            if not is_new and _order(row) < each.order:
                rows.filter(pk=row.pk).update(**SAVED.attributes(each))


def put_saves(alias: str, saved: Sequence[SavedDetails]) -> None:
    """Write the saves in the caller's transaction, which has locked their run."""
    names = [name for name in SAVED.names if name not in ("run_id", "location")]
    StepSave.objects.using(alias).bulk_create(
        [StepSave(**SAVED.attributes(each)) for each in saved],
        update_conflicts=True,
        update_fields=names,
        unique_fields=_KEY,
    )


def forget_saves(alias: str, run_id: str, locations: Sequence[str]) -> None:
    """Delete what the steps at these locations have saved."""
    StepSave.objects.using(alias).filter(run_id=run_id, location__in=locations).delete()


def _order(row: StepSave) -> tuple[int, int, int, int]:
    return (row.generation, row.fence, row.attempt, row.number)
