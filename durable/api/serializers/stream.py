"""The shapes of the history stream."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema_serializer
from rest_framework import serializers

from durable.api.long_poll import MAX_WAIT
from durable.api.serializers.fields import Number, Query, Text

LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="The id of the last event that you have."
)


class StreamQuery(Query):
    """The position to begin after, and the time to wait."""

    after = Text(required=False, max_length=120, help_text="The id of the last event that you have.")
    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


class EventSerializer(serializers.Serializer[Any]):
    """A change in a run's history."""

    event = serializers.ChoiceField(choices=["entry", "removed", "reset", "run", "end"])
    data = serializers.DictField()  # type: ignore[assignment]  # DRF removes fields from the class


@extend_schema_serializer(component_name="News")
class NewsSerializer(serializers.Serializer[Any]):
    """The changes, in the order in which the client has to apply them."""

    events = EventSerializer(many=True)
    last_event_id = serializers.CharField(help_text="Give it as `after` to go on behind these.")
    has_ended = serializers.BooleanField(help_text="Nothing follows.")
