"""The shape of causes of failed runs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Form, Moment, Text
from durable.api.serializers.runs import CountSerializer
from durable.inspection import CauseSummary
from durable.operations.causes import MAX_NOTE


@extend_schema_serializer(component_name="Cause")
class CauseSerializer(serializers.Serializer[CauseSummary]):
    """A cause of failed runs."""

    cause = serializers.CharField(source="fingerprint", help_text="Give it as `cause` to the list of runs.")
    place = serializers.CharField(
        help_text='The step that failed, "~" for the number of an iteration; empty for the workflow\'s own code.'
    )
    error_type = serializers.CharField(help_text="The name of the innermost error's class.")
    pattern = serializers.SerializerMethodField(
        help_text='The error\'s message, "#" for what differs. Null without the permission to see payloads.'
    )
    runs = CountSerializer(source="count", help_text="How many runs are failed because of it.")
    first_seen_at = Moment()
    since = Moment(help_text="When the first of these runs failed.")
    last_at = Moment(help_text="When the last of these runs failed.")
    workflows = serializers.ListField(child=serializers.CharField(), help_text="Those of its newest failures.")
    builds = serializers.ListField(
        child=serializers.CharField(),
        help_text="The newest build of the code whose workers have seen it; empty where none is named.",
    )
    is_muted = serializers.BooleanField()
    note = serializers.CharField(help_text="What an operator has said of it; empty for nothing.")
    noted_at = Moment(allow_null=True, help_text="When that was said.")
    noted_by = serializers.CharField()

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_pattern(self, cause: CauseSummary) -> str | None:
        """Return the redacted pattern, for users who may see payloads."""
        return cause.pattern if self.context["may_see_payloads"] else None


class NoteForm(Form):
    """A note on a cause."""

    note = Text(allow_blank=True, max_length=MAX_NOTE, help_text="For other operators; empty for none.")


@extend_schema_serializer(component_name="CauseList")
class CauseListSerializer(serializers.Serializer[Any]):
    """The causes of failed runs, at most 50."""

    results = CauseSerializer(many=True)
