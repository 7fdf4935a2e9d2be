"""The conditions that alerts were sent for, so that each is sent once: a side table of `durable.alerts`."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row


class AlertState(Row):
    """A condition that alerts were sent for; `ended_at` is None as long as it holds.

    `key` names the condition, and `number` counts how often it has begun. The row changes in the transaction that
    starts the runs that send the alerts.
    """

    key = NameField[str, str](max_length=300, unique=True)
    kind = NameField[str, str](max_length=32)
    title = SafeTextField[str, str](blank=True)
    number = models.IntegerField(default=1)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["kind", "id"], condition=Q(ended_at__isnull=True), name="durable_alert_open")]

    def __str__(self) -> str:
        return self.key
