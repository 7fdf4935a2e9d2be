"""Activities: the steps that run now, as far as they have run for more than a moment.

A side table: a step that ends within a second has no row in it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from durable.core.records import ActivityKind
from durable.models.fields import NameField, SafeTextField, choices
from durable.models.rows import Row
from durable.models.run import Run


class ActivityQuerySet(models.QuerySet["Activity"]):
    """Activities."""

    def current(self, now: datetime) -> Self:
        """Return those that run now: their worker still has the lease of the run."""
        return self.filter(fence=F("run__fence"), run__lease_expires_at__gt=now)

    def left_over(self) -> Self:
        """Return those whose worker has lost the run, died or ended the pass without deleting them."""
        held = Run.objects.filter(id=OuterRef("run_id"), fence=OuterRef("fence"), lease_expires_at__isnull=False)
        return self.filter(~Exists(held.order_by()))


class Activity(Row):
    """An attempt that runs now (`durable.core.records.Activity`), and what operators have asked about it.

    It is current as long as `fence` is that of its run and the run has a live lease. A killed worker leaves its rows;
    they are not current, and any worker that notes an activity deletes them later. `stack` is the answer to the
    question of `stack_asked_at`, taken at `stack_taken_at`.
    """

    # no constraint in the database: a worker writes without locking the run, and a row of a deleted run is left over
    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="activities", db_index=False, db_constraint=False
    )
    location = NameField[str, str](max_length=1024)
    attempt = models.IntegerField()
    kind = NameField[str, str](max_length=16, choices=choices(ActivityKind))
    fence = models.BigIntegerField()
    worker = SafeTextField[str, str](default="", blank=True)
    began_at = models.DateTimeField()
    timeout = models.FloatField()
    stack_asked_at = models.DateTimeField(null=True, blank=True)
    stack_taken_at = models.DateTimeField(null=True, blank=True)
    stack = SafeTextField[str, str](default="", blank=True)
    abandon_asked_at = models.DateTimeField(null=True, blank=True)

    objects = ActivityQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "activities"
        indexes = [models.Index(fields=["began_at", "id"], name="durable_activity_oldest")]
        constraints = [
            models.UniqueConstraint(fields=["run", "location"], name="durable_activity_once_per_location"),
            models.CheckConstraint(
                condition=Q(kind__in=[kind.value for kind in ActivityKind]), name="durable_activity_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"
