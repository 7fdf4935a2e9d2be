"""Side tables of a start's options (rank, time limits, tags, subjects), and of holds.

A run without any of these has no row.

A side table with a row for each workflow that has an `on_end`. Only what ends a run without its code reads it.

Side tables: a queue whose runs have neither priorities nor shares has no row in them.

Side tables: the claim of a queue and the start of a run look a hold up in the statement that they send anyway.

A row has the time of its run, because only an index that begins with the tag and goes on with the order of lists gives
the newest runs without sorting all of the tag: an array with a GIN index has no order. `RunQuerySet.tagged` sorts by
the columns of the row. A join on the time too would let the run's own columns do the same; but PostgreSQL then expects
one row of the join, and reads both tables whole (20,000 runs, half of them with the tag).
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q

from durable.core.ids import MAX_ID
from durable.core.limits.ranks import Ranking, ShareTag
from durable.core.new_runs import MAX_KEY, Subject
from durable.core.records import Hold as HoldRecord
from durable.core.records import HoldKind
from durable.core.time_limits import RunLimits
from durable.models.rows import MomentField, NameField, Recorded, Row, SafeTextField, SummaryField, choices
from durable.models.run import Run


class RunRank(Row):
    """The rank given by the start of a run (`durable.core.limits.ranks.Ranking`)."""

    # no constraint in the database: the row is inserted in the transaction that has inserted the run
    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="ranking", db_constraint=False
    )
    priority = NameField[str, str](max_length=MAX_ID, blank=True)
    head_start = models.IntegerField()
    share = NameField[str, str](max_length=MAX_ID, blank=True)
    weight = models.FloatField()

    record = Recorded(Ranking)


class WorkflowEnd(Row):
    """A workflow that calls a function in the commit that ends a run (`on_end`), under one of its names.

    `migrate` and workers write the row. It is for those that lack the code: processes, and the database's functions.
    """

    workflow = NameField[str, str](max_length=MAX_ID, primary_key=True)

    class Meta:
        default_permissions = ()


class Lane(Row):
    """A head start that runs of a queue have had. A claim reads the first due runs of each lane."""

    queue = NameField[str, str](max_length=MAX_ID)
    head_start = models.IntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "head_start"], name="durable_lane_once")]

    def __str__(self) -> str:
        return f"{self.queue} {self.head_start}"


class Share(Row):
    """The position of a share of a queue (`durable.core.limits.ranks.ShareTag`); the share "" is the queue itself."""

    queue = NameField[str, str](max_length=MAX_ID)
    share = NameField[str, str](max_length=MAX_ID, blank=True)
    tag = MomentField(null=True, blank=True)
    round = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "share"], name="durable_share_once")]

    def __str__(self) -> str:
        return f"{self.queue} {self.share}"

    record = Recorded(ShareTag)


class RunLimit(Row):
    """The limits of one run (`durable.core.time_limits.RunLimits`), and since when it is in doubt.

    Lengths of time are in seconds.
    """

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="limit")
    deadline = MomentField(null=True, blank=True)
    length = models.FloatField(null=True, blank=True)
    work_limit = models.FloatField(null=True, blank=True)
    worked = models.FloatField(default=0.0)
    in_doubt = MomentField(null=True, blank=True)

    record = Recorded(RunLimits)


class Hold(Row):
    """A paused queue, or a workflow whose new starts are held (`durable.core.records.Hold`).

    A start of a held workflow locks the row until it commits, so that a release misses no run. `summary` becomes the
    summary of such a run.
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

    record = Recorded(HoldRecord, kind=lambda row: HoldKind(row.kind))


class HeldStart(Row):
    """A run that was paused because its workflow was held at its start. `due_at` is when it was to begin."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="held_start")
    workflow = NameField[str, str](max_length=200)
    due_at = MomentField()

    class Meta:
        indexes = [models.Index(fields=["workflow", "run"], name="durable_heldstart_by_workflow")]


_PACKED: Final = 1_000  # characters: of 200, each of which may be written with five


class RunTag(Row):
    """A tag of a run: the text of its value (`durable.core.tags.tag_text`), or its HMAC (`durable.tag_hashes`).

    `created_at` is that of the run, so that the newest runs of a tag are one range of the index. `start_value` is the
    value given by the run's start, None if the run has tagged itself.
    """

    # no constraint in the database: the row is inserted in the transaction that has inserted the run
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="tags", db_index=False, db_constraint=False)
    name = NameField[str, str](max_length=MAX_ID)
    value = NameField[str, str](max_length=_PACKED)
    start_value = NameField[str | None, str | None](max_length=_PACKED, null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="durable_runtag_once_per_name")]
        indexes = [models.Index(fields=["name", "value", "created_at", "run"], name="durable_runtag_newest")]

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


MAX_LABEL: Final = 255  # characters of the label of a model


class RunSubject(Row):
    """A model's instance that a run is about (`durable.core.new_runs.Subject`), by its label and its primary key.

    The row names the model by its label, not by a content type: content types of another database have other numbers,
    and they are deleted with their model, while the runs stay. `created_at` is that of the run, as in `RunTag`.
    """

    # no constraint in the database: the row is inserted in the transaction that has inserted the run
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="subjects", db_index=False, db_constraint=False)
    model = NameField[str, str](max_length=MAX_LABEL)
    object_pk = NameField[str, str](max_length=5 * MAX_KEY)  # packed: a character may be written with five
    cancels = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["run", "model", "object_pk"], name="durable_runsubject_once"),
        ]
        indexes = [
            models.Index(fields=["model", "object_pk", "created_at", "run"], name="durable_runsubject_newest"),
            # what a deletion looks up, however many runs there are about the instance
            models.Index(fields=["model", "object_pk"], condition=Q(cancels=True), name="durable_runsubject_cancels"),
        ]

    def __str__(self) -> str:
        return f"{self.model}:{self.object_pk}"

    record = Recorded(Subject, key=lambda row: row.object_pk)
