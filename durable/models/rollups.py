"""Numbers of ended runs by minute and by half hour, for charts.

Side tables, written by the sweep (`durable.rollups`): a run pays nothing for them.
"""

from __future__ import annotations

from django.db import models

from durable.models.fields import JSONTextField, NameField
from durable.models.rows import Row


class Rollup(Row):
    """The number of runs that ended from `begins` on, for `width` seconds, and their durations.

    `workflow` is "" in the row of all workflows. `durations` has the number of runs for each class of durations
    (`durable.rollups.durations`).
    """

    workflow = NameField[str, str](max_length=200, default="", blank=True)
    width = models.IntegerField()
    begins = models.DateTimeField()
    completed = models.IntegerField(default=0)
    failed = models.IntegerField(default=0)
    cancelled = models.IntegerField(default=0)
    durations = JSONTextField[dict[str, int], dict[str, int]](default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workflow", "width", "begins"], name="durable_rollup_is_one"),
        ]
        indexes = [models.Index(fields=["width", "begins"], name="durable_rollup_by_time")]

    def __str__(self) -> str:
        return f"{self.workflow or 'all'} {self.begins}"


class RollupProgress(Row):
    """The one row that says up to when the ended runs are counted.

    `asked_at` and `asked_xid` are the moment and the transaction of the last look: once every transaction before that
    one has ended, each run that ended before that moment can be seen.
    """

    until = models.DateTimeField()
    asked_at = models.DateTimeField(null=True, blank=True)
    asked_xid = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.until)
