"""The limits of runs: a side table, with a row for each run that was started with a deadline or a work limit."""

from __future__ import annotations

from django.db import models

from durable.core.limits import RunLimits
from durable.models.fields import MomentField
from durable.models.rows import Row
from durable.models.run import Run


class RunLimit(Row):
    """The limits of one run (`durable.core.limits.RunLimits`); lengths of time are in seconds."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="limit")
    deadline = MomentField(null=True, blank=True)
    length = models.FloatField(null=True, blank=True)
    work_limit = models.FloatField(null=True, blank=True)
    worked = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return self.run_id

    @property
    def record(self) -> RunLimits:
        """The limits as the engine has them."""
        return RunLimits(deadline=self.deadline, length=self.length, work_limit=self.work_limit, worked=self.worked)
