"""The query strings of answers that are not lists."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.long_poll import MAX_WAIT
from durable.api.serializers.fields import Id, Number, Query, QueryFlag, Text
from durable.core.location import MAX_LOCATION

_EXPANDABLE = ("input", "output")


class RunQuery(Query):
    """The expansions of a run."""

    expand = Text(required=False, help_text="`input`, `output`, or both, separated by a comma.")

    def validate_expand(self, value: str) -> list[str]:
        """Return the names. Raises ValidationError for unknown ones."""
        names = value.split(",")
        if unknown := [name for name in names if name not in _EXPANDABLE]:
            raise ValidationError(f"{unknown[0]!r} cannot be expanded; {' and '.join(_EXPANDABLE)} can.")
        return names


class ResultQuery(Query):
    """The time to wait."""

    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


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


class TimelineQuery(Query):
    """The folded row to open, and the members to show of it."""

    open = Text(
        required=False,
        default="",
        allow_blank=True,
        max_length=MAX_LOCATION,
        help_text="What a row's `opens` says: its members are rows too, the failed ones first.",
    )
    after = serializers.IntegerField(
        required=False, default=-1, min_value=-1, max_value=2**53, help_text="The `more` of the page before."
    )


class PlanQuery(Query):
    """The location."""

    location = Text(max_length=1024)
    with_output = QueryFlag(
        required=False, default=False, help_text="The plan of giving the output of this step by hand."
    )


class StackQuery(Query):
    """The step whose stack is wanted."""

    location = Text(max_length=1024)


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="The id of the last event that you have."
)


class StreamQuery(Query):
    """The position to begin after, and the time to wait."""

    after = Text(required=False, max_length=120, help_text="The id of the last event that you have.")
    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")
