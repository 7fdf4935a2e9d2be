"""Moved classes and rollback handlers: what migrations have said of import paths that are recorded.

A side table with a row for each move. A process reads it when a recorded name leads to nothing, and no run refers to
it.
"""

from __future__ import annotations

from django.db import models

from durable.core.moved_names import Move
from durable.models.fields import NameField
from durable.models.rows import Row


class MovedName(Row):
    """A class or function that has two names, "module:qualname": `old` and `new`.

    The rows count in the order of their ids. None is deleted while there are runs, because their records have both
    names.
    """

    old = NameField[str, str](max_length=500)
    new = NameField[str, str](max_length=500)
    recorded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.old} is {self.new}"


def recorded_moves(alias: str) -> list[Move]:
    """Return the moves that the database has, the oldest first."""
    return [Move(*each) for each in MovedName.objects.using(alias).order_by("id").values_list("old", "new")]
