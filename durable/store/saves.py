"""Saves of steps in a database.

Owns which of two saves stays: the later one. PostgreSQL has a statement for `write` (`durable.store.sql`). Must not
decide when something is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from durable.core.records import SavedDetails
from durable.models import Run, StepSave
from durable.store.rows import SAVED

_KEY = ["run", "location"]


def write(alias: str, saved: Sequence[SavedDetails]) -> None:
    """Write those of the saves whose runs are leased under their fence and that are later than what is stored."""
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


def put(alias: str, saved: Sequence[SavedDetails]) -> None:
    """Write the saves in the transaction of the caller, who has the lock of their run."""
    names = [name for name in SAVED.names if name not in ("run_id", "location")]
    StepSave.objects.using(alias).bulk_create(
        [StepSave(**SAVED.attributes(each)) for each in saved],
        update_conflicts=True,
        update_fields=names,
        unique_fields=_KEY,
    )


def forget(alias: str, run_id: str, locations: Sequence[str]) -> None:
    """Delete what the steps at these locations have saved."""
    StepSave.objects.using(alias).filter(run_id=run_id, location__in=locations).delete()


def _order(row: StepSave) -> tuple[int, int, int, int]:
    return (row.generation, row.fence, row.attempt, row.number)
