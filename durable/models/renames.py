"""Renames: what migrations have said of names that are recorded (`durable.core.renames`).

A side table with a row for each rename. Worker processes read it when they start, and no run refers to it.
"""

from __future__ import annotations

from django.db import models

from durable.models.fields import NameField

__all__ = ["RenamedStep"]


class RenamedStep(models.Model):
    """An operation of a workflow that has two names: `old` and `new` are locations, "~" stands for any iteration.

    The rows of a workflow count in the order of their ids. None is deleted, because idempotency keys are made of the oldest
    name.
    """

    workflow = NameField[str, str](max_length=200)
    old = NameField[str, str](max_length=1024)
    new = NameField[str, str](max_length=1024)
    recorded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.workflow}: {self.old} is {self.new}"
