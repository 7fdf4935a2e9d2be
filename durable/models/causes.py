"""Failures of runs, and their causes: written when a run fails, read by lists, by bulk verbs and by the overview.

Side tables: a run that does not fail has no row in them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage
from django.db import models
from django.db.models import Q
from django.utils.crypto import salted_hmac

from durable.core.records import Cause as CauseRecord
from durable.core.records import FailureRecord
from durable.models.rows import NameField, Recorded, Row, SafeTextField
from durable.models.run import Run

_SALT: Final = "durable.causes"


def names_of(cause: CauseRecord) -> list[str]:
    """Return the names under which a cause may be known, 16 hexadecimal digits each; a new one gets the first.

    A user who sees a name may not be allowed to see the cause's pattern, so a name is a keyed hash: nobody can try
    patterns without `SECRET_KEY`. A cause that is known under a name of `SECRET_KEY_FALLBACKS`, or under the hash
    without a key of earlier versions, keeps that name.
    """
    text = f"{cause.place}\0{cause.error_type}\0{cause.pattern}".encode(errors="surrogatepass")
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    found = [salted_hmac(_SALT, text, secret=key, algorithm="sha256").hexdigest() for key in keys]
    return list(dict.fromkeys(each[:16] for each in [*found, hashlib.sha256(text).hexdigest()]))


class Cause(Row):
    """The cause that failures of one kind share (`durable.core.records.Cause`).

    `first_seen_at` is the time of the first failure. A muted cause does not count as needing attention. `note` is an
    operator's note for others, or "".
    """

    fingerprint = NameField[str, str](max_length=16, unique=True)
    place = NameField[str, str](max_length=1024, blank=True)
    error_type = NameField[str, str](max_length=200)
    pattern = SafeTextField[str, str](blank=True)
    first_seen_at = models.DateTimeField()
    muted_at = models.DateTimeField(null=True, blank=True)
    muted_by = SafeTextField[str, str](default="", blank=True)
    note = SafeTextField[str, str](default="", db_default="", blank=True)
    noted_at = models.DateTimeField(null=True, blank=True)
    noted_by = SafeTextField[str, str](default="", db_default="", blank=True)

    def __str__(self) -> str:
        return self.fingerprint

    record = Recorded(CauseRecord)


class Failure(Row):
    """The newest failure of a run. `is_open`: the run is still failed because of it, or held.

    `is_held`: the run goes on, and a step of it waits for a person.

    `parent` is a child's parent (`durable.models.Child`); None for a root, and for a child whose parent was deleted.
    """

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="failure")
    cause = models.ForeignKey(Cause, on_delete=models.CASCADE, related_name="failures", db_index=False)
    workflow = NameField[str, str](max_length=200)
    queue = NameField[str, str](max_length=200)
    worker = SafeTextField[str, str](default="", blank=True)
    failed_at = models.DateTimeField()
    run_created_at = models.DateTimeField()
    is_open = models.BooleanField(default=True)
    is_held = models.BooleanField(default=False, db_default=False)
    build = NameField[str, str](max_length=200, default="", db_default="", blank=True)
    # without a constraint: the child's commit would lock the parent's row
    parent = models.ForeignKey(
        Run,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="failures_of_children",
        db_index=False,
        db_constraint=False,
    )

    class Meta:
        indexes = [
            # the list of failed roots, the newest first, however many children have failed
            models.Index(
                fields=["run_created_at", "run"],
                condition=Q(is_open=True, parent__isnull=True),
                name="durable_failure_open_roots",
            ),
            # the runs with a step that waits for a person, the newest first
            models.Index(fields=["run_created_at", "run"], condition=Q(is_held=True), name="durable_failure_held"),
            # the failures whose parent is deleted
            models.Index(fields=["parent"], condition=Q(parent__isnull=False), name="durable_failure_of_parent"),
            # the list of a cause's failed runs, the newest first, and their number
            models.Index(
                fields=["cause", "run_created_at", "run"], condition=Q(is_open=True), name="durable_failure_open"
            ),
            # the first and the last failure of a cause's failed runs
            models.Index(fields=["cause", "failed_at"], condition=Q(is_open=True), name="durable_failure_open_since"),
            # all failures of a cause by time, for the last day and for the workflows of the newest
            models.Index(fields=["cause", "failed_at"], include=["workflow"], name="durable_failure_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.cause_id}"

    @classmethod
    def held_no_more(cls, alias: str, run_id: str) -> None:
        """Note that no step of the run waits for a person."""
        cls.objects.using(alias).filter(run_id=run_id, is_held=True).update(is_open=False, is_held=False)

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        """Check the model, without a warning for databases such as SQLite.

        There the index by time lacks `workflow`, which is read from the table.
        """
        return [each for each in super().check(**kwargs) if each.id != "models.W040"]

    record = Recorded(FailureRecord, cause=lambda row: row.cause.record)


class CauseBuild(Row):
    """A build (`durable.models.workers.Build`) whose workers have seen the cause, and when that first happened."""

    cause = models.ForeignKey(Cause, on_delete=models.CASCADE, related_name="builds", db_index=False)
    build = NameField[str, str](max_length=200)
    first_seen_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["cause", "first_seen_at"], name="durable_causebuild_by_time")]
        constraints = [models.UniqueConstraint(fields=["cause", "build"], name="durable_causebuild_once")]

    def __str__(self) -> str:
        return f"{self.cause_id}: {self.build}"
