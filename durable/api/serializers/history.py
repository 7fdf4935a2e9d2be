"""The queries of histories."""

from __future__ import annotations

from rest_framework import serializers

from durable.api.serializers.fields import Id, Query, QueryFlag


class TreeQuery(Query):
    """The part of the tree to return."""

    start = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=10**9,
        help_text="The position to begin at; without it, where the run is. Above 5,000 entries it counts entries.",
    )
    only_failed = QueryFlag(required=False, default=False, help_text="What has failed or is not completed.")


class ComparisonQuery(Query):
    """The other run, and the page."""

    other = Id(help_text="The run to compare with.")
    start = serializers.IntegerField(required=False, default=0, min_value=0, max_value=1_000_000)
