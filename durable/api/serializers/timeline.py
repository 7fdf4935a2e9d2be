"""The shape of a run's timeline."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment, Query, Text
from durable.core.location import MAX_LOCATION


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


@extend_schema_serializer(component_name="TimelineSpan")
class TimelineSpanSerializer(serializers.Serializer[Any]):
    """A span of time in a row."""

    kind = serializers.CharField(
        help_text='attempt, given, failed, backoff, sleep, wait, rollback, "rollback failed", moment, scope (all that is '
        "inside) or folded (from the first member to the last)"
    )
    begins_at = Moment()
    ends_at = Moment(allow_null=True)


@extend_schema_serializer(component_name="TimelineRow")
class TimelineRowSerializer(serializers.Serializer[Any]):
    """A place of the history, or several that are folded into one row."""

    place = serializers.CharField(help_text='A location; where it is folded, with "#" for numbers.')
    title = serializers.CharField()
    kind = serializers.CharField(help_text="That of the entry, or iteration, branch or block.")
    depth = serializers.IntegerField()
    status = serializers.CharField(help_text="That of the entry or of the worst one inside, or caught.")
    is_folded = serializers.BooleanField()
    count = serializers.IntegerField(help_text="Members of a folded row; 0 if their number is not known.")
    location = serializers.CharField(help_text="That of its entry; empty if it has none or stands for several.")
    opens = serializers.CharField(help_text="The `open` that shows what is inside; empty for nothing.")
    begins_at = Moment()
    ends_at = Moment(allow_null=True, help_text="Null while it goes on.")
    p50 = serializers.FloatField(allow_null=True, help_text="Seconds that half of the members took at most.")
    p95 = serializers.FloatField(allow_null=True, help_text="Seconds that 95 of 100 members took at most.")
    failed = serializers.IntegerField(help_text="Entries that have failed, caught or not.")
    failed_attempts = serializers.IntegerField(help_text="Those before a recovery are counted.")
    note = serializers.CharField()
    spans = TimelineSpanSerializer(many=True)


@extend_schema_serializer(component_name="TimelineMark")
class TimelineMarkSerializer(serializers.Serializer[Any]):
    """A mark of an operator's verb."""

    at = Moment()
    title = serializers.CharField()


@extend_schema_serializer(component_name="TimelineGap")
class TimelineGapSerializer(serializers.Serializer[Any]):
    """A long stretch in which no step was executed."""

    begins_at = Moment()
    ends_at = Moment()


@extend_schema_serializer(component_name="Timeline")
class TimelineSerializer(serializers.Serializer[Any]):
    """The waterfall of a run: at most 120 rows and 400 failed attempts, of the whole history."""

    begins_at = Moment(source="axis.begins_at")
    ends_at = Moment(source="axis.ends_at")
    gaps = TimelineGapSerializer(many=True, source="axis.gaps")
    rows = TimelineRowSerializer(many=True)
    marks = TimelineMarkSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Rows that were too many; none of them has failed.")
    attempts_left_out = serializers.IntegerField(help_text="Older failed attempts, which are counted only.")
    is_sampled = serializers.BooleanField(help_text="Durations are those of some entries; numbers are exact.")
    more = serializers.IntegerField(allow_null=True, help_text="The `after` of the next members of what is open.")
