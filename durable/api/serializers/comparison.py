"""Two runs side by side."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Id, Query
from durable.inspection.comparison import Side


class ComparisonQuery(Query):
    """The other run, and the page."""

    other = Id(help_text="The run to compare with.")
    start = serializers.IntegerField(required=False, default=0, min_value=0, max_value=1_000_000)


class SideSerializer(serializers.Serializer[Side]):
    """One of two compared runs at a place."""

    status = serializers.CharField()
    attempts = serializers.IntegerField()
    took = serializers.SerializerMethodField(help_text="Seconds; null if it has not completed.")
    error = serializers.CharField()
    is_given = serializers.BooleanField(help_text="Whether a person gave the output by hand.")
    output = serializers.JSONField(help_text="Null without `durable.view_payload`.")

    @extend_schema_field({"type": ["number", "null"]})
    def get_took(self, side: Side) -> float | None:
        """Return the duration in seconds."""
        return None if side.took is None else side.took.total_seconds()


class DifferenceSerializer(serializers.Serializer[Any]):
    """A place of both runs."""

    location = serializers.CharField()
    kind = serializers.CharField()
    differs = serializers.ListField(child=serializers.CharField(), help_text="What is not the same; empty: all is.")
    left = SideSerializer(allow_null=True, help_text="Of this run; null if it has nothing there.")
    right = SideSerializer(allow_null=True, help_text="Of the other run.")


@extend_schema_serializer(component_name="Comparison")
class ComparisonSerializer(serializers.Serializer[Any]):
    """A page of the places of two runs."""

    rows = DifferenceSerializer(many=True)
    total = serializers.IntegerField()
    is_cut = serializers.BooleanField(help_text="Whether a history is longer than what is read.")
    next_start = serializers.IntegerField(allow_null=True)
    inputs = serializers.ListField(
        child=serializers.JSONField(),
        allow_null=True,
        help_text="Both inputs if they differ, on the first page, with `durable.view_payload`.",
    )
