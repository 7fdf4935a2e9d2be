"""The shape of a workflow in numbers."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.holds import HoldSerializer
from durable.api.serializers.runs import CountSerializer
from durable.inspection.activities import StepDurations
from durable.inspection.workflows import OpenPlace


class StepDurationsSerializer(serializers.Serializer[StepDurations]):
    """The usual duration of a step: of the attempt that succeeded."""

    place = serializers.CharField(help_text='Its location, "~" for the number of an iteration.')
    sampled = serializers.IntegerField(help_text="Its executions that were looked at.")
    failed = serializers.IntegerField(help_text="Those of them that failed for good, recovered or not.")
    attempts = serializers.FloatField(allow_null=True, help_text="For a success, on average; null without one.")
    p50 = serializers.FloatField(allow_null=True, help_text="Half took less, in seconds; null without a success.")
    p95 = serializers.FloatField(allow_null=True, help_text="95 of 100 took less, in seconds; null without a success.")


class OpenPlaceSerializer(serializers.Serializer[OpenPlace]):
    """A place at which open runs stand."""

    state = serializers.CharField()
    place = serializers.CharField(help_text="In words; empty if the state says all.")
    count = serializers.IntegerField()


class BuildInFlightSerializer(serializers.Serializer[Any]):
    """A build that workers run now."""

    build = serializers.CharField()
    workers = serializers.IntegerField(help_text="How many of the workers that serve the workflow's queue run it.")


@extend_schema_serializer(component_name="WorkflowStats")
class WorkflowStatsSerializer(serializers.Serializer[Any]):
    """A workflow in numbers."""

    name = serializers.CharField(help_text="That of the code, also if another one was asked for.")
    other_names = serializers.ListField(
        child=serializers.CharField(), help_text="Those before or after migrations have renamed it, the oldest first."
    )
    sampled = serializers.IntegerField(
        source="stats.sampled", help_text="The runs that completed last, of which p50 and p95 are; at most 200."
    )
    p50 = serializers.FloatField(
        source="stats.p50", allow_null=True, help_text="Half took less, in seconds; null without a completed run."
    )
    p95 = serializers.FloatField(
        source="stats.p95", allow_null=True, help_text="95 of 100 took less, in seconds; null without a completed run."
    )
    failed = CountSerializer(source="stats.failed", help_text="The runs that are failed now.")
    steps = StepDurationsSerializer(
        source="stats.steps", many=True, help_text="From a sample of its newest runs, the slowest p95 first."
    )
    flakiest = serializers.CharField(
        source="stats.flakiest", help_text="The place of the step that is tried again most; empty if none is."
    )
    slowest = serializers.CharField(
        source="stats.slowest", help_text="The place of the step with the longest p95; empty for fewer than two."
    )
    places = OpenPlaceSerializer(
        source="stats.places", many=True, help_text="Of the open ones among its newest 1,000 runs, the commonest first."
    )
    is_windowed = serializers.BooleanField(
        source="stats.is_windowed", help_text="Whether it has as many runs as that, or more."
    )
    hold = HoldSerializer(
        allow_null=True, help_text="Since when its new starts are held, by whom and why; null if they are not."
    )
    held_starts = CountSerializer(help_text="The runs that wait, paused, because it is or was held.")
    builds = BuildInFlightSerializer(many=True, help_text="The commonest first; [] where workers name none.")
