"""The shapes of operators' actions."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Id, Moment, PageQuery, Text
from durable.models import OperatorAction
from durable.operations.audit import PERMISSIONS, SOURCES, Outcome


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
