"""The forms of the verbs of schedules."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from durable.api.serializers.actions import Delay
from durable.api.serializers.fields import Flag, JSONArray, JSONObject, Moment, Text
from durable.api.serializers.options import VerbForm, checked, option_field
from durable.core.ids import MAX_ID, check_queue
from durable.operations.catalogue import RULE, ZONE
from durable.schedules import CATCH_UPS, OVERLAPS, check_name
from durable.schedules.rules import MAX_NAME


class ScheduleForm(VerbForm):
    """The reason, and the schedule that the user saw."""


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
