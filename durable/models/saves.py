"""Saves of steps: a side table, with a row for each step that runs, or failed, after a save."""

from __future__ import annotations

from django.db import models

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row
from durable.models.run import Run


class StepSave(Row):
    """The newest save of the attempts of one step (`durable.core.records.SavedDetails`); `details` is codec text.

    The commit of the completed step deletes it.
    """

    # no constraint in the database: a worker writes without locking the run, and a row of a deleted run is left over
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="saves", db_index=False, db_constraint=False)
    location = NameField[str, str](max_length=1024)
    generation = models.IntegerField(default=0)
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    number = models.BigIntegerField()
    details = SafeTextField[str, str]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "location"], name="durable_stepsave_once_per_location")]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"
