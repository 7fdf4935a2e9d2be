"""Tables for operators: the audit log, sent alerts, saved views, kept log lines, and numbers for charts.

A side table without a constraint to the run: a constraint would have each write wait for the run's lock.

Side tables, written by the sweep (`durable.rollups`): a run pays nothing for them.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models, router
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durable.conf import conf
from durable.models.rows import JSONTextField, NameField, Row, SafeTextField
from durable.models.run import Run


def set_null_where_the_log_is(collector: Any, field: Any, rows: Any, using: str) -> None:
    """Forget a deleted user. Django looks for references in the user's database, which may have no audit log.

    Durable's database has one, even if another alias migrates it (past a pooler, for example).
    """
    if using == conf.DATABASE or router.allow_migrate_model(using, field.model):
        models.SET_NULL(collector, field, rows, using)


set_null_where_the_log_is.lazy_sub_objs = True  # type: ignore[attr-defined]  # as SET_NULL: no row is read


class OperatorAction(Row):
    """One action of an operator; denied actions are included.

    The row outlives the run, whose id it has as text, and the user, whose name stays in `actor_label`. The columns are
    those of `durable.core.records.ActionRecord`; the outcomes are those of `ActionOutcome` there.

    A bulk has a row of its own, whose `run_id` is the bulk's id. The rows of its runs have this id as their `bulk_id`.
    """

    class Source(models.TextChoices):
        """The surface that the action came from."""

        ADMIN = "admin", _("admin")
        API = "api", _("API")
        CLI = "cli", _("command line")
        CODE = "code", _("code")

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=set_null_where_the_log_is,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
    )
    actor_label = SafeTextField[str, str](default="", blank=True)
    source = NameField[str, str](_("source"), max_length=16, choices=Source.choices)
    action = NameField[str, str](max_length=64)
    run_id = NameField[str, str](_("run"), max_length=200, default="", blank=True)
    reason = SafeTextField[str, str](_("reason"), default="", blank=True)
    before = SafeTextField[str, str](default="", blank=True)
    after = SafeTextField[str, str](default="", blank=True)
    outcome = NameField[str, str](max_length=64)
    detail = SafeTextField[str, str](_("detail"), default="", db_default="", blank=True)
    created_at = models.DateTimeField()
    bulk_id = NameField[str, str]("bulk", max_length=200, default="", db_default="", blank=True)
    subject_kind = NameField[str, str](max_length=16, default="", db_default="", blank=True)
    subject = NameField[str, str](max_length=200, default="", db_default="", blank=True)
    number = models.IntegerField(default=0, db_default=0)
    actor_key = NameField[str, str](max_length=300, default="", db_default="", blank=True)

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["run_id", "created_at", "id"], name="durable_action_by_run"),
            models.Index(fields=["created_at", "id"], name="durable_action_newest"),
            models.Index(fields=["actor", "created_at", "id"], name="durable_action_by_actor"),
            # the log with one row for each bulk
            models.Index(fields=["created_at", "id"], condition=Q(bulk_id=""), name="durable_action_top"),
            # the rows of a bulk, by their outcome
            models.Index(fields=["bulk_id", "outcome", "id"], condition=~Q(bulk_id=""), name="durable_action_of_bulk"),
            # the runs of a worker that has died
            models.Index(
                fields=["actor_label", "created_at"], condition=Q(action="worker_died"), name="durable_action_of_death"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(source__in=["admin", "api", "cli", "code"]), name="durable_action_source_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.run_id}".strip()


class AlertState(Row):
    """A condition for which alerts were sent; `ended_at` is None while it lasts.

    `key` names the condition, and `number` counts how often it has begun. The row changes in the transaction that
    starts the runs that send the alerts.
    """

    key = NameField[str, str](max_length=300, unique=True)
    kind = NameField[str, str](max_length=32)
    title = SafeTextField[str, str](blank=True)
    number = models.IntegerField(default=1)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["kind", "id"], condition=Q(ended_at__isnull=True), name="durable_alert_open")]

    def __str__(self) -> str:
        return self.key


class SavedView(Row):
    """A saved view of its owner; all users see it if it is shared. `query` is that of the list's address, without "?".

    The owner is known by the key of the user, who may be stored in another database.
    """

    name = NameField[str, str](max_length=80)
    query = SafeTextField[str, str](blank=True)
    owner_key = NameField[str, str](max_length=200)
    owner_label = SafeTextField[str, str](blank=True)
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        permissions = [("share_savedview", "Can share saved views of the list, and delete shared ones")]
        constraints = [models.UniqueConstraint(fields=["owner_key", "name"], name="durable_view_has_a_name")]
        indexes = [models.Index(fields=["name"], condition=Q(is_shared=True), name="durable_view_shared")]

    def __str__(self) -> str:
        return self.name


class LogLine(Row):
    """One record of a run's log: `level` is Python's number, `location` that of the step, or of the code's scope.

    `text` is the message, and the traceback below it if there is one.
    """

    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="log_lines"
    )
    at = models.DateTimeField()
    level = models.SmallIntegerField()
    logger = NameField[str, str](max_length=200, blank=True)
    location = NameField[str, str](max_length=1024, default="", blank=True)
    text = SafeTextField[str, str](blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["run", "id"], name="durable_log_of_run")]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.text[:80]}"


class Rollup(Row):
    """The number of runs that ended within `width` seconds from `begins` on, and their durations.

    `workflow` is "" in the row of all workflows. `durations` has the number of runs for each class of durations
    (`durable.rollups`).
    """

    workflow = NameField[str, str](max_length=200, default="", blank=True)
    width = models.IntegerField()
    begins = models.DateTimeField()
    completed = models.IntegerField(default=0)
    failed = models.IntegerField(default=0)
    cancelled = models.IntegerField(default=0)
    durations = JSONTextField[dict[str, int], dict[str, int]](default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workflow", "width", "begins"], name="durable_rollup_is_one"),
        ]
        indexes = [models.Index(fields=["width", "begins"], name="durable_rollup_by_time")]

    def __str__(self) -> str:
        return f"{self.workflow or 'all'} {self.begins}"


class RollupProgress(Row):
    """The single row that says up to when the ended runs are counted.

    `asked_at` and `asked_xid` are the time and the transaction of the last query. Once all earlier transactions have
    ended, every run that ended before that time is visible.
    """

    until = models.DateTimeField()
    asked_at = models.DateTimeField(null=True, blank=True)
    asked_xid = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.until)


class RetentionProgress(Row):
    """The single row that says up to when expired runs are deleted: those that expired before `until` are gone.

    Runs that stay, because something refers to them, do not count. The sweep writes it (`durable.retention`).
    """

    until = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.until)
