"""The run: one execution of a workflow."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, Request, RunState
from durable.models.fields import ErrorField, JSONTextField, NameField, SafeTextField, choices
from durable.models.querysets import RunQuerySet

__all__ = ["Run"]

_ENDED = sorted(ENDED)


class Run(models.Model):
    """One execution of a workflow, identified by an id that the caller may choose.

    The row has the run's state and says which worker may change it. The run is due when `wake_at` has come and there is
    no live lease (`lease_expires_at`). Each claim raises `fence`, and only the worker with the newest fence may write.
    Everything that is done to the run from outside raises `signal`, so that a pass which is about to park learns of it.
    `messages` counts the messages ever sent to the run. The columns are those of `durable.core.records.RunRecord`.
    """

    id = NameField[str, str]("id", primary_key=True, max_length=200)
    workflow = NameField[str, str](max_length=200)
    queue = NameField[str, str](max_length=200)
    state = NameField[str, str](max_length=16, choices=choices(RunState), default=RunState.PENDING.value)
    input = SafeTextField[str, str]()
    output = SafeTextField[str | None, str | None](null=True, blank=True)
    error = ErrorField[ErrorInfo | None, ErrorInfo | None](null=True, blank=True)
    origins = JSONTextField[list[str], list[str]](default=list, blank=True)

    wake_at = models.DateTimeField(null=True, blank=True)
    waiting_for = SafeTextField[str, str](default="", blank=True)
    summary = SafeTextField[str, str](default="", blank=True)

    fence = models.BigIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    worker = SafeTextField[str, str](default="", blank=True)
    crashes = models.IntegerField(default=0)
    signal = models.BigIntegerField(default=0)
    messages = models.BigIntegerField(default=0)

    request = NameField[str, str](max_length=16, choices=choices(Request), default=Request.NONE.value, blank=True)
    request_reason = SafeTextField[str, str](default="", blank=True)
    outcome = NameField[str, str](max_length=16, default="", blank=True)
    diverged_at = models.DateTimeField(null=True, blank=True)

    generations = JSONTextField[dict[str, int], dict[str, int]](default=dict, blank=True)

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    parent = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children", db_index=False
    )
    replay_of = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="replays", db_index=False
    )
    seed = NameField[str, str](max_length=200, default="", db_default="", blank=True)
    began_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        permissions = [
            ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
            ("start_run", "Can start runs"),
            ("operate_run", "Can send to, wake, pause, resume, cancel and recover runs"),
            ("replay_run", "Can replay runs"),
        ]
        indexes = [
            # due runs, in the order in which they are claimed; a paused run is never due
            models.Index(
                fields=["queue", "wake_at", "id"],
                condition=Q(wake_at__isnull=False) & ~Q(state=RunState.PAUSED.value),
                name="durable_run_due",
            ),
            models.Index(
                fields=["lease_expires_at"], condition=Q(lease_expires_at__isnull=False), name="durable_run_leased"
            ),
            # lists, newest first, paged by key
            models.Index(fields=["created_at", "id"], name="durable_run_newest"),
            models.Index(fields=["state", "created_at", "id"], name="durable_run_by_state"),
            models.Index(fields=["workflow", "created_at", "id"], name="durable_run_by_workflow"),
            # ended runs, the oldest of each kind first, for retention; a run enters it once, at its end
            models.Index(
                fields=["state", "workflow", "finished_at", "id"],
                condition=Q(finished_at__isnull=False),
                name="durable_run_ended",
            ),
            # ended runs by time, for throughput; a run enters it once as well
            models.Index(fields=["finished_at"], condition=Q(finished_at__isnull=False), name="durable_run_finished"),
            # diverged runs: hardly ever any
            models.Index(fields=["diverged_at"], condition=Q(diverged_at__isnull=False), name="durable_run_diverged"),
            models.Index(fields=["parent"], condition=Q(parent__isnull=False), name="durable_run_children"),
            models.Index(fields=["replay_of"], condition=Q(replay_of__isnull=False), name="durable_run_replays"),
        ]
        constraints = [
            models.CheckConstraint(condition=~Q(id=""), name="durable_run_has_an_id"),
            models.CheckConstraint(
                condition=Q(state__in=[state.value for state in RunState]), name="durable_run_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(request__in=[request.value for request in Request]), name="durable_run_request_is_known"
            ),
            models.CheckConstraint(
                condition=Q(outcome__in=["", *(state.value for state in _ENDED)]), name="durable_run_outcome_is_an_end"
            ),
            models.CheckConstraint(
                condition=Q(fence__gte=0, crashes__gte=0, signal__gte=0, messages__gte=0),
                name="durable_run_counts_from_zero",
            ),
            # an ended run has `finished_at`, no `wake_at` and no lease
            models.CheckConstraint(
                condition=~Q(state__in=[state.value for state in _ENDED])
                | Q(finished_at__isnull=False, wake_at__isnull=True, lease_expires_at__isnull=True),
                name="durable_run_end_is_final",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[state.value for state in _ENDED]) | Q(finished_at__isnull=True),
                name="durable_run_finished_means_ended",
            ),
            models.CheckConstraint(
                condition=Q(parent__isnull=True) | ~Q(parent=F("id")), name="durable_run_is_not_its_own_parent"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"
