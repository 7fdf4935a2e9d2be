"""Keys: at most one open run of a workflow has a key, and what `start_or_send` has sent to that run.

Side tables: a run that was started without a key has no row.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.core.ids import MAX_ID
from durable.core.records import KeyRecord
from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row
from durable.models.run import Run


class RunKey(Row):
    """The key with which a run was started (`durable.core.records.KeyRecord`).

    The end of the run closes the row in the same commit, a recovery opens it again. Two starts meet at the unique
    index, in which closed rows (NULL) do not count. Not a partial index, because not every database has these.
    """

    # no constraint in the database: the key is taken before its run is inserted, in one statement
    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="key", db_constraint=False)
    workflow = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID)
    is_open = models.BooleanField(default=True, null=True)  # True or NULL
    taken_at = models.DateTimeField()
    moves = models.IntegerField(default=0)
    moved_at = models.DateTimeField(null=True, blank=True)
    follows = NameField[str | None, str | None](max_length=MAX_ID, null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["follows"], condition=Q(follows__isnull=False), name="durable_runkey_of_the_next"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workflow", "key", "is_open"], name="durable_runkey_one_open_run"),
            models.CheckConstraint(condition=~Q(is_open=False), name="durable_runkey_is_open_or_null"),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def record(self) -> KeyRecord:
        """The key as the engine has it."""
        return KeyRecord(
            run_id=self.run_id,
            workflow=self.workflow,
            key=self.key,
            is_open=bool(self.is_open),
            taken_at=self.taken_at,
            moves=self.moves,
            moved_at=self.moved_at,
            follows=self.follows,
        )


class KeyedSend(Row):
    """A message of `start_or_send`, and the input of the run that it would have started (`core.records.KeyedSend`).

    If the run completes without receiving the message, another run gets it, with this input.
    """

    message_id = NameField[str, str](primary_key=True, max_length=200)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="keyed_sends", db_constraint=False)
    input = SafeTextField[str | None, str | None](null=True, blank=True)
    was_first = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.message_id
