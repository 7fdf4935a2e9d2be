"""The shapes of limits: what is held, and who waits."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment
from durable.inspection.limits import LimitKeySummary, LimitSummary


@extend_schema_serializer(component_name="LimitKey")
class LimitKeySerializer(serializers.Serializer[LimitKeySummary]):
    """A key of a limit."""

    key = serializers.CharField(help_text="Empty for a limit without keys.")
    held = serializers.IntegerField(help_text="How many slots are held, counted up to 10,000.")
    waiting = serializers.IntegerField(help_text="How many runs and steps wait for one, counted up to 1,000.")
    oldest_at = Moment(allow_null=True, help_text="Since when the first in the line waits; null for an empty line.")


@extend_schema_serializer(component_name="Limit")
class LimitSerializer(serializers.Serializer[LimitSummary]):
    """A limit."""

    name = serializers.CharField()
    at_once = serializers.IntegerField(help_text="How many slots of each key may be held at once.")
    code_says = serializers.IntegerField(help_text="The number of the code or the settings.")
    is_overridden = serializers.BooleanField(help_text="Whether an operator has set the number.")
    keys = LimitKeySerializer(many=True, help_text="The keys with the longest lines first; at most 100.")


@extend_schema_serializer(component_name="LimitList")
class LimitListSerializer(serializers.Serializer[Any]):
    """All limits."""

    results = LimitSerializer(many=True)
