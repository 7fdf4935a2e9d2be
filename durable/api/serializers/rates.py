"""The shapes of rates: what is reserved until when, who waits, and what is closed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment
from durable.inspection.limits import RateKeySummary, RateSummary


@extend_schema_serializer(component_name="RateKey")
class RateKeySerializer(serializers.Serializer[RateKeySummary]):
    """A key of a rate."""

    key = serializers.CharField(help_text="Empty for a limit without keys.")
    waiting = serializers.IntegerField(help_text="How many attempts wait for their moments; 1,000 means that or more.")
    next_at = Moment(allow_null=True, help_text="When the first of them begins; null if none waits.")
    reserved_until = Moment(
        allow_null=True, help_text="Until when the rate is taken; null for a key that was not used."
    )
    closed_until = Moment(source="closing.until", default=None, allow_null=True, help_text="Null while it is open.")
    closed_by = serializers.CharField(source="closing.by", default="", help_text="Who has closed it, if it is closed.")
    closed_why = serializers.CharField(source="closing.reason", default="", help_text="The reason of the closing.")
    last_minute = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="How many units have begun in each five seconds of the last minute, the oldest first.",
    )
    refused = serializers.IntegerField(help_text="How many starts it has refused, since it was first used.")
    refused_at = Moment(
        source="last_refused.at",
        default=None,
        allow_null=True,
        help_text="When it has refused the last one; null for never.",
    )
    refused_workflow = serializers.CharField(
        source="last_refused.workflow", default="", help_text="What that one would have started."
    )


@extend_schema_serializer(component_name="Rate")
class RateSerializer(serializers.Serializer[RateSummary]):
    """A limit's rate."""

    name = serializers.CharField(help_text="The name of the limit.")
    rate = serializers.CharField(source="rate.text", help_text='How many units may begin in each period: "500/min".')
    burst = serializers.IntegerField(source="rate.burst", help_text="How many units may begin at once after a pause.")
    code_says = serializers.CharField(help_text="The rate of the code or the settings.")
    is_overridden = serializers.BooleanField(help_text="Whether an operator has set the rate.")
    keys = RateKeySerializer(many=True, help_text="Those for which most attempts wait come first; at most 100.")


@extend_schema_serializer(component_name="RateList")
class RateListSerializer(serializers.Serializer[Any]):
    """All rates."""

    results = RateSerializer(many=True)
