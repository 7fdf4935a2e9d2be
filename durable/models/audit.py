"""The audit log: who did what to which run, from where, why, and with what outcome."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row


class OperatorAction(Row):
    """One action of an operator; denied actions are included.

    The row outlives the run, whose id it has as text, and the user, whose name stays in `actor_label`. The columns are
    those of `durable.core.records.ActionRecord`; the outcomes are those of `durable.operations.audit.Outcome`.

    A bulk has a row of its own, whose `run_id` is the bulk's id. The rows of its runs have this id as their `bulk_id`.
    """

    class Source(models.TextChoices):
        """The surface that the action came from."""

        ADMIN = "admin", _("admin")
        API = "api", _("API")
        CLI = "cli", _("command line")
        CODE = "code", _("code")

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
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
