"""The shapes of a run's log."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment, Query, Text
from durable.inspection.run_logs import LEVELS


class LogQuery(Query):
    """The lines of a log to return, and their number."""

    level = serializers.ChoiceField(
        choices=sorted(LEVELS, key=LEVELS.__getitem__),
        required=False,
        default="",
        help_text="Without lines below this level.",
    )
    place = Text(
        required=False, default="", max_length=1024, help_text="Lines of this location, and of those within it."
    )
    after = serializers.IntegerField(
        required=False, default=0, min_value=0, max_value=2**63 - 1, help_text="Lines with a greater `id`."
    )
    limit = serializers.IntegerField(
        required=False, default=200, min_value=1, max_value=1_000, help_text="How many at most."
    )


@extend_schema_serializer(component_name="LogLine")
class LogLineSerializer(serializers.Serializer[Any]):
    """A line of a log."""

    id = serializers.IntegerField(help_text="Greater for later lines.")
    at = Moment()
    level = serializers.CharField()
    logger = serializers.CharField()
    location = serializers.CharField(help_text='Of the step or the scope that logged it; "" for the run itself.')
    text = serializers.CharField(help_text="The message, with a traceback below it if there is one.")


@extend_schema_serializer(component_name="LogPage", many=False)
class LogPageSerializer(serializers.Serializer[Any]):
    """A page of a log."""

    results = LogLineSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True, help_text="The `after` of the next page; null at the end.")
