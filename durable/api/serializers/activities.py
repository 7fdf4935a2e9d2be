"""The shape of what runs now."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment, Query, Text
from durable.inspection import RunningStack, RunningStep


@extend_schema_serializer(component_name="Activity")
class ActivitySerializer(serializers.Serializer[RunningStep]):
    """An attempt of a step, or a call of a step's rollback handler, that runs now."""

    run = serializers.CharField(source="run_id")
    workflow = serializers.CharField()
    queue = serializers.CharField()
    location = serializers.CharField(help_text="The step's place in the history.")
    kind = serializers.ChoiceField(choices=["step", "rollback"], help_text="The step, or its rollback handler.")
    attempt = serializers.IntegerField()
    worker = serializers.CharField()
    began_at = Moment()
    seconds = serializers.FloatField(help_text="For how long it has run.")
    timeout = serializers.FloatField(help_text="In seconds; 0 for none.")
    p50 = serializers.FloatField(
        source="usual.p50", default=None, allow_null=True, help_text="How long it usually takes, in seconds, if known."
    )
    p95 = serializers.FloatField(
        source="usual.p95", default=None, allow_null=True, help_text="How long it takes at most in 95 of 100 cases."
    )
    is_hung = serializers.BooleanField(help_text="It has run for far longer than usual.")
    stack_asked_at = Moment(allow_null=True, help_text="When its stack was requested.")
    stack_taken_at = Moment(allow_null=True, help_text="When a worker answered.")
    abandon_asked_at = Moment(allow_null=True, help_text="When the attempt was abandoned; it has not ended yet.")
    saved = serializers.SerializerMethodField(
        help_text="Of the steps of one run: what the step has saved last. Null without the permission to see payloads."
    )

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_saved(self, step: RunningStep) -> Any:
        """Return what the context has of it."""
        return self.context.get("saved", {}).get(step.location)


class StackQuery(Query):
    """The step whose stack is wanted."""

    location = Text(max_length=1024)


@extend_schema_serializer(component_name="Stack")
class StackSerializer(serializers.Serializer[RunningStack]):
    """The stack of a running step, as its worker has answered."""

    text = serializers.CharField(help_text="The frames, the outermost first; empty until the worker has answered.")
    asked_at = Moment(allow_null=True)
    taken_at = Moment(allow_null=True)


@extend_schema_serializer(component_name="ActivityList")
class ActivityListSerializer(serializers.Serializer[Any]):
    """A page of what runs now."""

    results = ActivitySerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)
