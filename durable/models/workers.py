"""The worker processes, the builds of the code that they have run, the running steps, and the mark of the database.

Each worker writes its own row (`durable.worker.presence`): at its start, about every 15 seconds, and at its end. A
worker that was killed is recognized by the age of its last sign of life. Side tables: no run refers to them.

A side table: a step that ends within a second has no row in it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Self

from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from durable.core.records import ActivityKind
from durable.models.rows import JSONTextField, NameField, Row, SafeTextField, choices
from durable.models.run import Run

#: The age of the last sign of life after which a worker counts as dead: three signs (`durable.worker.presence`).
DEAD_AFTER: Final = timedelta(seconds=45)
#: The attempt number of an activity that is not an attempt: a task or thread that an asynchronous step left on its
#: loop.
LEFT: Final = 0


class WorkerProcess(Row):
    """One worker process, from its start to its end.

    `name` is the `worker` of the runs that it holds. `slots` is how many runs it executes at once. With `serves_all` it
    also serves queues that `queues` does not name. `memory` is its resident set in bytes, if the system tells. `passes`
    counts the passes that have ended since its start, and `recent_passes` those of about the last five minutes; None
    from a worker of a release before.
    """

    class State(models.TextChoices):
        """The state that the process reported of itself."""

        SERVING = "serving", "serving"
        STOPPING = "stopping", "stopping"

    name = NameField[str, str](max_length=300, unique=True)
    host = SafeTextField[str, str](blank=True)
    pid = models.BigIntegerField()
    queues = JSONTextField[list[str], list[str]](default=list)
    serves_all = models.BooleanField(default=False)
    slots = models.IntegerField()
    build = NameField[str, str](max_length=200, default="", db_default="", blank=True)
    state = NameField[str, str](max_length=16, choices=State.choices, default=State.SERVING)
    memory = models.BigIntegerField(null=True, blank=True)
    passes = models.BigIntegerField(null=True, blank=True)
    recent_passes = models.IntegerField(null=True, blank=True)
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["last_seen_at"], name="durable_worker_seen")]

    def __str__(self) -> str:
        return self.name


class Build(Row):
    """A build of the project's code (`DURABLE["BUILD"]`), and when a worker first ran it."""

    name = NameField[str, str](max_length=200, unique=True)
    first_seen_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["first_seen_at"], name="durable_build_by_time")]

    def __str__(self) -> str:
        return self.name


class ActivityQuerySet(models.QuerySet["Activity"]):
    """Activities."""

    def current(self, now: datetime) -> Self:
        """Return the activities that run now: their worker still has the run's lease."""
        return self.filter(fence=F("run__fence"), run__lease_expires_at__gt=now)

    def going_on(self, now: datetime) -> Self:
        """Return these activities, and tasks or threads that asynchronous steps have left on their loops and that still
        run.
        """
        alive = WorkerProcess.objects.filter(name=OuterRef("worker"), last_seen_at__gt=now - DEAD_AFTER)
        is_current = Q(fence=F("run__fence"), run__lease_expires_at__gt=now)
        return self.filter(is_current | (Q(attempt=LEFT) & Exists(alive.order_by())))

    def left_over(self) -> Self:
        """Return those whose worker has lost the run, died or ended the pass without deleting them."""
        held = Run.objects.filter(id=OuterRef("run_id"), fence=OuterRef("fence"), lease_expires_at__isnull=False)
        known = WorkerProcess.objects.filter(name=OuterRef("worker"))
        return self.filter(~Exists(held.order_by()), ~(Q(attempt=LEFT) & Exists(known.order_by())))


class Activity(Row):
    """An attempt that runs now (`durable.core.records.Activity`), and what operators have asked about it.

    It is current as long as `fence` is that of its run and the run has a live lease. A killed worker leaves its rows;
    they are not current, and any worker that notes an activity deletes them later. `stack` is the answer to the
    question of `stack_asked_at`, taken at `stack_taken_at`.

    With the attempt `LEFT` it is what an asynchronous step, or with the location "" the workflow's own code, has left
    on its event loop, from its cancellation on. It has the fence 0, and `stack` names it.
    """

    # no constraint in the database: a worker writes without locking the run, and a row of a deleted run is left over
    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="activities", db_index=False, db_constraint=False
    )
    location = NameField[str, str](max_length=1024)
    attempt = models.IntegerField()
    kind = NameField[str, str](max_length=16, choices=choices(ActivityKind))
    fence = models.BigIntegerField()
    worker = SafeTextField[str, str](default="", blank=True)
    began_at = models.DateTimeField()
    timeout = models.FloatField()
    summary = SafeTextField[str, str](default="", db_default="", blank=True)
    stack_asked_at = models.DateTimeField(null=True, blank=True)
    stack_taken_at = models.DateTimeField(null=True, blank=True)
    stack = SafeTextField[str, str](default="", blank=True)
    abandon_asked_at = models.DateTimeField(null=True, blank=True)

    objects = ActivityQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "activities"
        indexes = [models.Index(fields=["began_at", "id"], name="durable_activity_oldest")]
        constraints = [
            models.UniqueConstraint(fields=["run", "location"], name="durable_activity_once_per_location"),
            models.CheckConstraint(
                condition=Q(kind__in=[kind.value for kind in ActivityKind]), name="durable_activity_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"


# -- which database the workers serve, and how far it has come

#: The key of the only row.
ONLY: Final = 1


class DatabaseMark(Row):
    """The single row that names this database and counts how far it has come.

    `name` is random, and given once. `counter` is raised by the sweep, with a new random `token`, at `written_at`. Each
    decision about a restored database raises `generation`. While the database is behind its mark, `mark_at` is the
    mark's moment: what reads a standby learns of it from there.

    Workers claim nothing while `holding_since` is set: the runs that were open then are being paused, or marked as in
    doubt since `in_doubt_since` if that is set. `went_back_from`
    and `went_back_to` are the moments of the mark and of the database at the last decision, made at `decided_at`.
    """

    name = models.CharField(max_length=32)
    generation = models.BigIntegerField(default=1)
    counter = models.BigIntegerField(default=0)
    token = models.CharField(max_length=16)
    written_at = models.DateTimeField()
    mark_at = models.DateTimeField(null=True, blank=True)
    holding_since = models.DateTimeField(null=True, blank=True)
    in_doubt_since = models.DateTimeField(null=True, blank=True)
    went_back_from = models.DateTimeField(null=True, blank=True)
    went_back_to = models.DateTimeField(null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name
