"""Running steps in a database: which run now, what operators ask of them, and what they have saved.

PostgreSQL has one statement for `report` and one for `save_details` (`durable.store.postgres.sql`). The rest is rare,
hence the same for both databases. Of two saves the later one stays. Must not decide which steps are
recorded: `durable.worker.activities` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Q

from durable.core.records import Activity, AskedOfActivity, RunRecord, SavedDetails, SavesForgotten
from durable.models import Activity as ActivityModel
from durable.models import Run, StepSave
from durable.store.tables import DatabaseTables
from durable.store.tables.rows import ACTIVITY, SAVED
from durable.store.transactions import RowsLocked, impatient

FORGOTTEN: Final = 500  # rows that one call of `forget` deletes

_STEP: Final = ("run_id", "location")
_RESET: Final = {"stack_asked_at": None, "stack_taken_at": None, "stack": "", "abandon_asked_at": None}


class DatabaseActivities(DatabaseTables):
    """The part of a `Store` for running steps and what they save."""

    def _note_activities(self, begun: Sequence[Activity], ended: Sequence[Activity]) -> None:
        """Write the rows of activities that have begun, if the lease is held, and delete those that have ended."""
        rows = ActivityModel.objects.using(self.alias)
        with impatient(self.alias):
            Run.objects.using(self.alias).lock_table()  # a transaction that reads first could not write beside a writer
            for each in ended:
                rows.filter(run_id=each.run_id, location=each.location, fence=each.fence).delete()
            held = self._leased(begun)
            for each in begun:
                if (each.run_id, each.fence) not in held:
                    continue
                values = {name: getattr(each, name) for name in ACTIVITY.names if name not in _STEP}
                row, is_new = rows.get_or_create(run_id=each.run_id, location=each.location, defaults=values)
                if not is_new and row.fence <= each.fence:
                    rows.filter(pk=row.pk).update(**values, **_RESET)

    def _asked_of_activities(self, run_ids: Sequence[str]) -> list[AskedOfActivity]:
        """Return what operators have asked of the activities of these runs."""
        wants_stack = Q(stack_asked_at__isnull=False, stack_taken_at__isnull=True)
        found = ActivityModel.objects.using(self.alias).filter(wants_stack | Q(abandon_asked_at__isnull=False))
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

    def ask_activities(
        self, run: RunRecord, location: str, now: datetime, *, stack: bool = False, abandon: bool = False
    ) -> list[str]:
        rows = ActivityModel.objects.using(self.alias).filter(run_id=run.id, fence=run.fence)
        rows = rows.filter(location=location) if location else rows
        asked = list(rows.order_by("began_at", "pk").values_list("location", flat=True))
        if stack:
            rows.update(stack_asked_at=now, stack_taken_at=None, stack="")
        if abandon:
            rows.filter(abandon_asked_at__isnull=True).update(abandon_asked_at=now)
        return asked

    def answer_stack(self, asked: AskedOfActivity, stack: str, now: datetime) -> None:
        where = {"run_id": asked.run_id, "location": asked.location, "attempt": asked.attempt, "fence": asked.fence}
        with suppress(RowsLocked), impatient(self.alias):
            ActivityModel.objects.using(self.alias).filter(**where).update(stack=stack, stack_taken_at=now)

    def forget_activities(self) -> None:
        rows = ActivityModel.objects.using(self.alias)
        old = list(rows.left_over().order_by("began_at", "id").values_list("pk", flat=True)[:FORGOTTEN])
        if old:
            with suppress(RowsLocked), impatient(self.alias):
                rows.filter(pk__in=old).left_over().delete()

    def _leased(self, noted: Sequence[Activity | SavedDetails]) -> set[tuple[str, int]]:
        runs = Run.objects.using(self.alias).filter(
            id__in={each.run_id for each in noted}, lease_expires_at__isnull=False
        )
        return set(runs.order_by().values_list("id", "fence"))

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        rows = StepSave.objects.using(self.alias)
        with transaction.atomic(using=self.alias):
            Run.objects.using(self.alias).lock_table()  # a transaction that reads first could not write beside a writer
            held = self._leased(saved)
            for each in saved:
                if (each.run_id, each.fence) not in held:
                    continue
                row, is_new = rows.get_or_create(
                    run_id=each.run_id, location=each.location, defaults=SAVED.attributes(each)
                )
                if not is_new and (row.generation, row.fence, row.attempt, row.number) < each.order:
                    rows.filter(pk=row.pk).update(**SAVED.attributes(each))

    def _put_saves(self, _run_id: str, saved: Sequence[SavedDetails], _now: datetime) -> None:
        """Write the saves in the caller's transaction, which has locked their run."""
        self._put_over(StepSave, [StepSave(**SAVED.attributes(each)) for each in saved], _STEP, SAVED.names)

    def _forget_saves(self, run_id: str, forgotten: Sequence[SavesForgotten], _now: datetime) -> None:
        """Delete what the steps at these locations have saved."""
        locations = [each.location for each in forgotten]
        StepSave.objects.using(self.alias).filter(run_id=run_id, location__in=locations).delete()
