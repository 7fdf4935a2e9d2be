"""Children: runs that workflow code has started as its own, the groups of a map, and parents whose children are still
to be cancelled.

Side tables: a run that is not a child and has no children has no row in them.

Side tables: a run without a group, and a child of its own, have no row in them. The parent's decisions and the counts
of ended children are separate rows, because they are written under different locks.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import Q

from durable.core.ids import MAX_ID
from durable.core.records import ChildRecord, GroupSpec, OnFailure, WhenHeld, WhenParentEnds
from durable.models.rows import MomentField, NameField, Recorded, Row, choices
from durable.models.run import Run


class Child(Row):
    """A run that the code of its parent has started (`durable.core.records.ChildRecord`).

    The commit of the parent that records the start inserts the row and the child's run together. `is_dropped`: the
    operation that started it was taken back, so that the child is cancelled although its parent continues.
    """

    # no constraints in the database: the parent's commit has locked the parent's row and inserts the child's
    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="child_of", db_constraint=False
    )
    parent = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="child_rows", db_index=False, db_constraint=False
    )
    location = NameField[str, str](max_length=1024)
    generation = models.IntegerField(default=0)
    when_parent_ends = NameField[str, str](max_length=8, choices=choices(WhenParentEnds))
    group = NameField[str | None, str | None](max_length=1024, null=True, blank=True)
    position = models.BigIntegerField()
    is_dropped = models.BooleanField(default=False)
    #: The id of the group (`ChildGroup`) that counts the child; None for a child of its own, and for one whose place
    #: another child has taken.
    member_of = NameField[str | None, str | None](max_length=MAX_ID, null=True, blank=True)

    class Meta:
        verbose_name_plural = "children"
        indexes = [models.Index(fields=["parent", "position"], name="durable_child_of_parent")]
        constraints = [
            models.CheckConstraint(
                condition=Q(when_parent_ends__in=[each.value for each in WhenParentEnds]),
                name="durable_child_when_parent_ends_is_known",
            ),
        ]

    record = Recorded(ChildRecord)


class ChildReader(Row):
    """A replay that may read or compensate a child of its original. The child is kept as long as that is possible.

    A replay as a new run makes the rows, for the ended children that its history has started and not read, and for
    those that are compensated with their parent.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="children_to_read", db_constraint=False)
    child = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="readers", db_constraint=False, db_index=False
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["child", "run"], name="durable_childreader_once")]

    def __str__(self) -> str:
        return f"{self.run_id} may read {self.child_id}"


class Cascade(Row):
    """A parent with children still to be cancelled, because it has ended or dropped them: the sweep continues.

    The row is deleted when none is left.
    """

    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="cascade", db_constraint=False
    )
    began_at = models.DateTimeField()


class ChildGroup(Row):
    """The children of one operation of a run (`durable.core.records.GroupRecord`), with the parent's decisions.

    Written under the lock of the parent's row. `position` is that of the first child; the others follow. `is_over`: the
    parent has read the results, or has taken the operation back (`is_dropped`): no child begins any more, except by
    hand.
    """

    id = NameField[str, str](max_length=MAX_ID, primary_key=True)
    parent = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="child_groups", db_index=False, db_constraint=False
    )
    location = NameField[str, str](max_length=1024)
    generation = models.IntegerField(default=0)
    size = models.IntegerField()
    position = models.BigIntegerField()
    at_once = models.IntegerField(null=True, blank=True)
    on_failure = NameField[str, str](max_length=8, choices=choices(OnFailure))
    when_parent_ends = NameField[str, str](max_length=8, choices=choices(WhenParentEnds))
    when_held = NameField[str, str](max_length=8, choices=choices(WhenHeld), default="keep", db_default="keep")
    is_over = models.BooleanField(default=False)
    is_dropped = models.BooleanField(default=False)

    class Meta:
        indexes = [models.Index(fields=["parent", "position"], name="durable_group_of_parent")]
        constraints = [
            models.CheckConstraint(
                condition=Q(on_failure__in=[each.value for each in OnFailure]),
                name="durable_group_on_failure_is_known",
            ),
        ]

    @classmethod
    def of(cls, spec: GroupSpec) -> Self:
        return cls(**{name: getattr(spec, name) for name in GroupSpec.__slots__})

    @property
    def spec(self) -> GroupSpec:
        """The parent's decision when it made the group."""
        return GroupSpec(**{name: getattr(self, name) for name in GroupSpec.__slots__})


class GroupTally(Row):
    """The numbers of a group's children by state. Written under its own lock, by the end of each child.

    `created` are those that have been made so far; each of them is in exactly one of the other counts. `waiting` are
    those that have a `Turn`, `running` the others that have not ended. `is_stopped`: a child has failed and the others
    are not to go on. No turn has a position before `turns_from`, so that none looks through the index of those that are
    deleted.
    """

    group = models.OneToOneField(
        ChildGroup, on_delete=models.CASCADE, primary_key=True, related_name="tally", db_constraint=False
    )
    created = models.IntegerField(default=0)
    waiting = models.IntegerField(default=0)
    running = models.IntegerField(default=0)
    completed = models.IntegerField(default=0)
    failed = models.IntegerField(default=0)
    cancelled = models.IntegerField(default=0)
    is_stopped = models.BooleanField(default=False)
    turns_from = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "group tallies"


class Turn(Row):
    """A child that waits for its turn in its group, because as many as may run at once do. The row is deleted when the
    wait ends.

    `due_at` is the earliest moment at which it may begin.
    """

    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="turn", db_constraint=False
    )
    group = models.ForeignKey(
        ChildGroup, on_delete=models.CASCADE, related_name="turns", db_index=False, db_constraint=False
    )
    position = models.BigIntegerField()
    due_at = MomentField()

    class Meta:
        indexes = [models.Index(fields=["group", "position"], name="durable_turn_in_order")]
