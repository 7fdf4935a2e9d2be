"""Log lines of runs: written by `durable.logs.RunLogHandler`, which a project switches on.

A side table without a constraint to the run: a constraint would have each write wait for the run's lock.
"""

from __future__ import annotations

from django.db import models

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row
from durable.models.run import Run


class LogLine(Row):
    """One record of a run's log: `level` is Python's number, `location` that of the step, or of the scope of the code.

    `text` is the message, and the traceback below it if there is one.
    """

    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="log_lines"
    )
    at = models.DateTimeField()
    level = models.SmallIntegerField()
    logger = NameField[str, str](max_length=200, blank=True)
    location = NameField[str, str](max_length=1024, default="", blank=True)
    text = SafeTextField[str, str](blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["run", "id"], name="durable_log_of_run")]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.text[:80]}"
