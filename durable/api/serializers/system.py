"""The shapes beside runs: workflows, queues, workers, operators' actions."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.paging import PageQuery
from durable.api.serializers.fields import Id, Moment, Text
from durable.api.serializers.holds import HoldSerializer
from durable.api.serializers.runs import CountSerializer
from durable.inspection import QueueSummary
from durable.models import OperatorAction
from durable.operations.audit import PERMISSIONS, SOURCES, Outcome


class ParameterSerializer(serializers.Serializer[Any]):
    """A parameter of a workflow's function."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]
    )
    is_required = serializers.BooleanField()
    annotation = serializers.CharField(help_text="As it is written in the code; empty for none.")
    default = serializers.CharField(
        allow_null=True, help_text="As Python shows it, … without the permission to see payloads; null for none."
    )


class DeclaredMessageSerializer(serializers.Serializer[Any]):
    """A message that a workflow declares."""

    name = serializers.CharField(help_text="The message queue.")
    schema = serializers.JSONField(help_text="The JSON schema of its body; empty for any.")
    example = serializers.JSONField(help_text="A body that has this shape.")


@extend_schema_serializer(component_name="Workflow")
class WorkflowSerializer(serializers.Serializer[Any]):
    """A workflow that this process knows."""

    name = serializers.CharField()
    queue = serializers.CharField(help_text="Where its runs go, unless a start says otherwise.")
    description = serializers.CharField()
    signature = serializers.CharField(help_text="Without the context.")
    parameters = ParameterSerializer(many=True)
    messages = DeclaredMessageSerializer(
        many=True, allow_null=True, help_text="All messages that its runs accept; null if they accept any."
    )


class WorkflowListSerializer(serializers.Serializer[Any]):
    """All workflows, by name."""

    results = WorkflowSerializer(many=True)


class QueueSerializer(serializers.Serializer[QueueSummary]):
    """A queue of workers."""

    name = serializers.CharField()
    workers = serializers.IntegerField(help_text="How many serve it.")
    is_known = serializers.BooleanField(
        help_text="Whether it is one of the project's RQ_QUEUES; always true where durable uses no Redis."
    )
    has_runs = serializers.BooleanField(help_text="Whether runs of it will wake by themselves, or are held.")
    has_workflows = serializers.BooleanField()
    is_paused = serializers.BooleanField(help_text="Whether an operator has paused it: no worker takes its runs.")
    hold = HoldSerializer(allow_null=True, help_text="Since when it is paused, by whom and why; null if it is not.")
    due = CountSerializer(help_text="The runs that a worker may take now.")
    oldest_due_at = Moment(allow_null=True, help_text="When the run became due that has been due for longest.")
    in_hand = CountSerializer(help_text="The runs that workers are executing.")
    in_per_minute = serializers.FloatField(
        source="came.per_minute",
        help_text="Runs created per minute: of the newest 1,000 of all queues, in the last 10 minutes.",
    )
    out_per_minute = serializers.FloatField(
        source="went.per_minute",
        help_text="Runs ended per minute: of the last 1,000 of all queues, in the last 10 minutes.",
    )
    served_by = serializers.SerializerMethodField(help_text="The names of the workers that serve it.")

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_served_by(self, queue: QueueSummary) -> list[str]:
        """Return the workers' names."""
        return [each.name for each in queue.serving]


class QueueListSerializer(serializers.Serializer[Any]):
    """All queues."""

    results = QueueSerializer(many=True)
    problem = serializers.CharField(help_text="Why Redis could not be asked for workers; empty if it was.")
    uses_redis = serializers.BooleanField(help_text="False where workers poll the database.")


class HeldRunSerializer(serializers.Serializer[Any]):
    """A run that a worker is executing."""

    id = serializers.CharField()
    workflow = serializers.CharField()
    lease_expires_at = Moment()


class WorkerSerializer(serializers.Serializer[Any]):
    """A worker process."""

    name = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField()
    queues = serializers.ListField(child=serializers.CharField())
    serves_all = serializers.BooleanField(help_text="Whether it serves other queues too, after these.")
    state = serializers.CharField(
        help_text="busy, idle, stopping (it hands over its runs), dead (no sign for 45 seconds), another word of RQ's, or "
        "unknown."
    )
    slots = serializers.IntegerField(allow_null=True, help_text="How many runs it executes at once.")
    build = serializers.CharField(help_text="Its code; empty where the project names none.")
    memory = serializers.IntegerField(allow_null=True, help_text="Its resident set, in bytes.")
    passes = serializers.IntegerField(allow_null=True, help_text="How many passes it has executed since its start.")
    recent_passes = serializers.IntegerField(allow_null=True, help_text="The same in about the last five minutes.")
    last_heartbeat = Moment(allow_null=True)
    started_at = Moment(allow_null=True)
    runs = HeldRunSerializer(many=True)


class WorkerListSerializer(serializers.Serializer[Any]):
    """The current workers, at most 200."""

    results = WorkerSerializer(many=True)
    problem = serializers.CharField(help_text="Why Redis could not be asked for workers; empty if it was.")
    uses_redis = serializers.BooleanField(help_text="False where workers poll the database.")


@extend_schema_serializer(component_name="OperatorAction")
class ActionSerializer(serializers.Serializer[OperatorAction]):
    """An action on a run, or a refused one."""

    id = serializers.IntegerField()
    created_at = Moment()
    actor = serializers.CharField(source="actor_label")
    source = serializers.ChoiceField(choices=list(SOURCES))  # type: ignore[assignment]  # DRF removes it from the class
    action = serializers.CharField()
    run = serializers.SerializerMethodField(help_text="Its id; empty where there was none.")
    reason = serializers.CharField()
    before = serializers.CharField(help_text="The run's state before.")
    after = serializers.CharField()
    outcome = serializers.ChoiceField(choices=[str(each) for each in Outcome])
    detail = serializers.CharField()
    bulk = serializers.CharField(
        source="bulk_id",
        help_text="The bulk that it is a part of; empty if there is none, or one of another user where a user may see some "
        "runs only.",
    )

    @extend_schema_field(serializers.CharField())
    def get_run(self, action: OperatorAction) -> str:
        """Return the run's id, as the log has it."""
        return action.run_id


@extend_schema_serializer(component_name="OperatorActionPage")
class ActionPageSerializer(serializers.Serializer[Any]):
    """A page of the audit log, the newest first."""

    results = ActionSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class ActionListQuery(PageQuery):
    """The actions to list."""

    run = Id(required=False)
    bulk = Id(required=False, help_text="The row of a bulk, and the rows of its runs.")
    actor = Text(required=False, max_length=200, help_text="A user's name, or a part of a name that the log has.")
    action = serializers.ChoiceField(choices=list(PERMISSIONS), required=False)
    outcome = serializers.ChoiceField(choices=[str(each) for each in Outcome], required=False)
    reason = Text(required=False, max_length=200, help_text="A part of the reason.")
    since = Moment(required=False, help_text="Included.")
    until = Moment(required=False, help_text="Excluded.")
