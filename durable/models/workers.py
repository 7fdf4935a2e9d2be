"""The worker processes, and the builds of the code that they have run.

Each worker writes its own row (`durable.worker.presence`): at its start, about every 15 seconds, and at its end. A
worker that was killed is known by the age of its last sign. Side tables: no run refers to them.
"""

from __future__ import annotations

from django.db import models

from durable.models.fields import JSONTextField, NameField, SafeTextField
from durable.models.rows import Row


class WorkerProcess(Row):
    """One worker process, from its start to its end.

    `name` is what the runs that it holds have as their worker. `slots` is how many runs it executes at once. With
    `serves_all` it also serves queues that `queues` does not name. `memory` is its resident set in bytes, if the system
    tells. `passes` counts the passes that have ended since its start, and `recent_passes` those of about the last five
    minutes; None from a worker of a release before.
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
