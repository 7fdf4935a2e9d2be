"""The shapes of holds: paused queues, and workflows whose new starts are held."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment


@extend_schema_serializer(component_name="Hold")
class HoldSerializer(serializers.Serializer[Any]):
    """A hold: since when, by whom and why."""

    name = serializers.CharField()
    held_at = Moment()
    held_by = serializers.CharField()
    reason = serializers.CharField()


@extend_schema_serializer(component_name="Release")
class ReleaseSerializer(serializers.Serializer[Any]):
    """The end of a hold."""

    name = serializers.CharField()
    resumed = serializers.IntegerField(
        allow_null=True,
        help_text="How many runs were resumed so far. If there are many, the others follow within minutes; 0 for a queue, "
        "null where a user may see some runs only.",
    )
