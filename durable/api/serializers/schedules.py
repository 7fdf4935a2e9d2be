"""The shapes of schedules and their ticks, and the forms of their verbs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.paging import PageQuery
from durable.api.serializers.actions import Delay
from durable.api.serializers.fields import Flag, JSONArray, JSONObject, Moment, Text
from durable.api.serializers.options import VerbForm, checked, option_field
from durable.core.ids import MAX_ID, check_queue
from durable.inspection.schedules import ScheduleSummary
from durable.models import Tick
from durable.operations.catalogue import RULE, ZONE
from durable.operations.schedules.verbs import revision_of
from durable.schedules import CATCH_UPS, OVERLAPS, check_name
from durable.schedules.rules import MAX_NAME


class ScheduleListQuery(PageQuery):
    """The schedules to list."""

    workflow = Text(required=False, default="", max_length=MAX_ID, help_text="Schedules of this workflow alone.")


@extend_schema_serializer(component_name="Tick")
class TickSerializer(serializers.Serializer[Any]):
    """A tick: the outcome of one moment of a schedule."""

    moment = Moment()
    kind = serializers.ChoiceField(choices=["tick", "catch_up", "run_now", "backfill"])
    outcome = serializers.ChoiceField(choices=Tick.Outcome.values)
    run = serializers.CharField(source="run_id", help_text="The run's id; empty if there is none.")
    why = serializers.CharField()
    decided_at = Moment()


@extend_schema_serializer(component_name="Schedule")
class ScheduleSerializer(serializers.Serializer[Any]):
    """A schedule, without its arguments."""

    name = serializers.CharField(source="schedule.name")
    workflow = serializers.CharField(source="schedule.workflow")
    state = serializers.ChoiceField(choices=["active", "waiting", "paused", "late", "gone"])
    rule = serializers.CharField(source="schedule.rules.text", help_text="The rule in force.")
    words = serializers.CharField(help_text="The rule in words.")
    zone = serializers.CharField(source="schedule.zone_in_force")
    is_overridden = serializers.BooleanField(source="schedule.is_overridden")
    origin = serializers.ChoiceField(source="schedule.origin", choices=["code", "admin"])
    queue = serializers.CharField(source="schedule.queue", help_text="Empty for the workflow's own.")
    overlap = serializers.ChoiceField(source="schedule.overlap", choices=OVERLAPS)
    catch_up = serializers.ChoiceField(source="schedule.catch_up", choices=CATCH_UPS)
    window = serializers.SerializerMethodField(help_text="In seconds; null for none.")
    jitter = serializers.SerializerMethodField(help_text="In seconds.")
    paused = serializers.BooleanField(source="schedule.paused")
    paused_by = serializers.CharField(source="schedule.paused_by")
    pause_reason = serializers.CharField(source="schedule.pause_reason")
    next = serializers.ListField(child=Moment(), source="moments", help_text="The next five moments.")
    revision = serializers.SerializerMethodField(help_text="For the `revision` of a verb.")

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_window(self, summary: ScheduleSummary) -> float | None:
        """Return the window in seconds."""
        window = summary.schedule.window
        return None if window is None else window.total_seconds()

    @extend_schema_field(serializers.FloatField())
    def get_jitter(self, summary: ScheduleSummary) -> float:
        """Return the jitter in seconds."""
        return summary.schedule.jitter.total_seconds()

    @extend_schema_field(serializers.CharField())
    def get_revision(self, summary: ScheduleSummary) -> str:
        """Return what `acting_as(expected=)` takes."""
        return revision_of(summary.schedule)


@extend_schema_serializer(component_name="ScheduleDetail")
class ScheduleDetailSerializer(ScheduleSerializer):
    """A schedule with its newest ticks, newest first."""

    ticks = TickSerializer(many=True)


@extend_schema_serializer(component_name="SchedulePage")
class SchedulePageSerializer(serializers.Serializer[Any]):
    """Schedules by name."""

    results = ScheduleSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


@extend_schema_serializer(component_name="Backfill")
class BackfillSerializer(serializers.Serializer[Any]):
    """The runs that a backfill starts or has started."""

    moments = serializers.ListField(child=Moment(), help_text="The moments without a run.")
    existing = serializers.IntegerField(help_text="How many moments of the period have a run already.")
    ticks = TickSerializer(many=True, help_text="What was started; empty with `dry_run`.")


class ScheduleForm(VerbForm):
    """The reason, and the schedule that the user saw."""

    revision = Text(required=False, max_length=MAX_ID, help_text="Refuse if the schedule has changed since.")


class BackfillForm(ScheduleForm):
    """A period in the past."""

    since = Moment()
    until = Moment()
    dry_run = Flag(required=False, default=False, help_text="Say what would be started, and start nothing.")


class QueueText(Text):
    """The name of a queue."""

    def to_internal_value(self, data: Any) -> str:
        """Return the name. Raises ValidationError."""
        text = super().to_internal_value(data)
        return checked(check_queue, text) if text else ""


class EditScheduleForm(ScheduleForm):
    """Changes of a schedule. Fields that are not given stay as they are."""

    rule = option_field(RULE, is_required=False)
    zone = option_field(ZONE)
    overlap = serializers.ChoiceField(choices=OVERLAPS, required=False)
    catch_up = serializers.ChoiceField(choices=CATCH_UPS, required=False)
    window = Delay(required=False, allow_null=True, help_text="Null for none.")
    jitter = Delay(required=False)
    queue = QueueText(required=False, allow_blank=True, max_length=MAX_ID)
    args = JSONArray(required=False)
    kwargs = JSONObject(required=False)


class NameText(Text):
    """A schedule's name."""

    def to_internal_value(self, data: Any) -> str:
        """Return the name. Raises ValidationError."""
        return checked(check_name, super().to_internal_value(data))


class CreateScheduleForm(EditScheduleForm):
    """A new schedule."""

    name = NameText(min_length=1, max_length=MAX_NAME, help_text="The ids of its runs begin with it.")
    workflow = Text(max_length=MAX_ID)
    rule = option_field(RULE)
    revision = None  # type: ignore[assignment]  # there is none yet
