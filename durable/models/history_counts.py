"""Counts of long histories: a side table, with a row for each run whose history is long."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row
from durable.models.run import Run


class HistoryCount(Row):
    """The counts of one long history, so that no page has to count it (`durable.inspection.stored_counts`).

    `noted_at` is when a worker last ended a pass of the run, None once its history is counted. `counts`, JSON text,
    holds while the run has the state, the fence, the `change_seq` and the `created_at` that are in `counted_as`.
    """

    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="history_count", db_constraint=False
    )
    noted_at = models.DateTimeField(null=True, blank=True)
    counted_as = NameField[str, str](max_length=100, default="", blank=True)
    counts = SafeTextField[str, str](default="", blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["noted_at"], condition=Q(noted_at__isnull=False), name="durable_historycount_noted")
        ]

    def __str__(self) -> str:
        return self.run_id
