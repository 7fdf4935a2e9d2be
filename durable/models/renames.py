"""Renames and moves: other names and import paths that migrations have given to recorded ones.

A side table with a row for each rename. Worker processes read it when they start, and no run refers to it.

A side table with a row for each move. A process reads it when a recorded name does not exist, and no run refers to it.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import CharField, Value

from durable.core.names.recorded_names import Move
from durable.core.names.renames import Alias, AliasKind, Rename, put_in_force, put_queues_in_force
from durable.models.rows import NameField, Row, choices


class RenamedStep(Row):
    """An operation of a workflow that has two names: `old` and `new` are locations, "~" stands for any iteration.

    The rows of a workflow apply in the order of their ids. None is deleted, because idempotency keys are made from the
    oldest name.
    """

    workflow = NameField[str, str](max_length=200)
    old = NameField[str, str](max_length=1024)
    new = NameField[str, str](max_length=1024)
    recorded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.workflow}: {self.old} is {self.new}"


class RenamedName(Row):
    """A workflow or a queue that has two names: `old` and `new`.

    The rows apply in the order of their ids. None is deleted: keys of runs are kept under the oldest name of a
    workflow, and runs may have any name of a queue.
    """

    kind = NameField[str, str](max_length=16, choices=choices(AliasKind))
    old = NameField[str, str](max_length=200)
    new = NameField[str, str](max_length=200)
    recorded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "old", "new"], name="durable_renamedname_once")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.old} is {self.new}"


_STEP = "step"


def names_in_force(alias: str) -> list[Rename | Alias]:
    """Return the renames in the database, the oldest first; one statement."""
    columns = ("kind", "workflow", "old", "new", "id")
    nothing: Any = Value("", output_field=CharField())
    steps = RenamedStep.objects.using(alias).annotate(kind=Value(_STEP, output_field=CharField())).values_list(*columns)
    others = RenamedName.objects.using(alias).annotate(workflow=nothing).values_list(*columns)
    rows = sorted(steps.union(others, all=True), key=lambda row: row[-1])
    return [
        Rename(workflow, old, new) if kind == _STEP else Alias(AliasKind(kind), old, new)
        for kind, workflow, old, new, _ in rows
    ]


_has_learned = False


def learn_names(alias: str) -> None:
    """Read the renames of migrations into this process."""
    global _has_learned
    put_in_force(names_in_force(alias))
    _has_learned = True


def know_names(alias: str) -> None:
    """Read the renames of migrations into this process, unless it has read them before."""
    if not _has_learned:
        learn_names(alias)


def learn_queues(alias: str) -> None:
    """Read the renames of queues into this process; one statement."""
    rows = RenamedName.objects.using(alias).filter(kind=AliasKind.QUEUE).order_by("id").values_list("old", "new")
    put_queues_in_force(Alias(AliasKind.QUEUE, *each) for each in rows)


class MovedName(Row):
    """A class or function that has two names, "module:qualname": `old` and `new`.

    The rows apply in the order of their ids. None is deleted while there are runs, because their records have both
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
    """Return the moves in the database, the oldest first."""
    return [Move(*each) for each in MovedName.objects.using(alias).order_by("id").values_list("old", "new")]
