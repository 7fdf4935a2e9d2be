"""Holds: queues whose runs are not claimed, and workflows whose new runs wait, until an operator lifts them.

Side tables: the claim of a queue and the start of a run look a hold up in the statement that they send anyway.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.core.records import Hold as HoldRecord
from durable.core.records import HoldKind
from durable.models.fields import MomentField, NameField, SafeTextField, SummaryField, choices
from durable.models.rows import Row
from durable.models.run import Run


class Hold(Row):
    """A paused queue, or a workflow whose new starts are held (`durable.core.records.Hold`).

    A start of a held workflow locks the row until it commits, so that a release misses no run. `summary` is what such a
    run gets as its own.
    """

    kind = NameField[str, str](max_length=16, choices=choices(HoldKind))
    name = NameField[str, str](max_length=200)
    held_at = models.DateTimeField()
    held_by = SafeTextField[str, str](default="", blank=True)
    reason = SafeTextField[str, str](default="", blank=True)
    summary = SummaryField[str, str](default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "name"], name="durable_hold_once"),
            models.CheckConstraint(
                condition=Q(kind__in=[each.value for each in HoldKind]), name="durable_hold_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def record(self) -> HoldRecord:
        """The hold as the engine has it."""
        return HoldRecord(
            kind=HoldKind(self.kind),
            name=self.name,
            held_at=self.held_at,
            held_by=self.held_by,
            reason=self.reason,
        )


class HeldStart(Row):
    """A run that was started while its workflow was held, and paused for it. `due_at` is when it was to begin."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="held_start")
    workflow = NameField[str, str](max_length=200)
    due_at = MomentField()

    class Meta:
        indexes = [models.Index(fields=["workflow", "run"], name="durable_heldstart_by_workflow")]

    def __str__(self) -> str:
        return self.run_id
