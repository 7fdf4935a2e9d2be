"""The arguments of actions."""

from __future__ import annotations

from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.serializers.fields import Flag, Form, Id, JSONArray, JSONObject, Moment, Number, Query, Text, Value
from durable.api.serializers.options import VerbForm, option_field
from durable.core.duration import seconds
from durable.core.ids import MAX_REASON
from durable.operations.causes import MAX_NOTE
from durable.operations.verbs import LOCATION

_LONGEST_TEXT = 200  # characters of a delay as text
_LONGEST_DELAY = 100 * 365 * 86_400  # seconds; a longer delay comes near the limit of Python's dates


@extend_schema_field(
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": _LONGEST_DELAY},
            {"type": "string", "maxLength": _LONGEST_TEXT},
        ]
    }
)
class Delay(serializers.Field[float, Any, Any, Any]):
    """Seconds, or a text such as "3 hours"."""

    def to_internal_value(self, data: Any) -> float:
        """Return the seconds. Raises ValidationError."""
        if isinstance(data, bool) or not isinstance(data, int | float | str):
            raise ValidationError('A number of seconds, or a text such as "3 hours".')
        if isinstance(data, str) and len(data) > _LONGEST_TEXT:
            raise ValidationError(f"At most {_LONGEST_TEXT} characters.", code="max_length")
        try:
            delay = seconds(data, "a delay")
        except (ValueError, TypeError, OverflowError) as error:
            raise ValidationError(f"{error}.") from None
        if delay > _LONGEST_DELAY:
            raise ValidationError("A century at most.")
        return delay


class Deadline(Delay):
    """Seconds, a text such as "30 days", or a time with its time zone, as ISO 8601 text."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the seconds or the time. Raises ValidationError."""
        is_time = isinstance(data, str) and len(data) <= _LONGEST_TEXT and _is_time(data)
        return Moment().run_validation(data) if is_time else super().to_internal_value(data)


def _is_time(text: str) -> bool:
    try:
        return parse_datetime(text) is not None
    except ValueError:  # like a time, and none: Moment says what is wrong
        return True


class ActionForm(VerbForm):
    """The reason, and the expected revision of the run."""


class StepForm(ActionForm):
    """The step that the action is about."""

    location = option_field(LOCATION)


class RestartForm(ActionForm):
    """The id of the new run."""

    id = Id(required=False, help_text="Of the new run; the same id again is the same run.")


class EditForm(RestartForm):
    """The id of the new run, and what is changed of the input."""

    changes = JSONObject(
        required=False, default=dict, help_text="Arguments by name, instead of those of the input. The others stay."
    )


class ReplayForm(RestartForm):
    """The location, and the kind of replay."""

    location = Text(max_length=1024)
    in_place = Flag(required=False, default=False, help_text="Take the run itself back, instead of making a new one.")
    plan_hash = Text(required=False, max_length=64, help_text="Of the plan that you have seen; a stale one is refused.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Raise ValidationError for options that exclude each other."""
        if attrs["in_place"] and "id" in attrs:
            raise ValidationError({"id": "A replay in place makes no new run: leave this out."})
        return attrs


class GiveOutputForm(ReplayForm):
    """The location of a step, and the output that it is to have."""

    reason = Text(min_length=1, max_length=MAX_REASON, help_text="For the audit log, and recorded with the step.")
    output = Value(allow_null=True, help_text="As the step would have returned it.")


class StartMessageForm(Form):
    """A message to the run that has the key."""

    queue = Text(min_length=1, max_length=128)
    body = Value(required=False, default=None, allow_null=True)


class StartForm(Form):
    """The workflow to start, and the options of the start."""

    workflow = Text(max_length=200)
    args = JSONArray(required=False, default=list)
    kwargs = JSONObject(required=False, default=dict)
    id = Id(required=False, help_text="The same id with the same input again is the same run.")
    queue = Text(required=False, max_length=200, help_text="One of the project's RQ_QUEUES.")
    delay = Delay(required=False, default=0.0, help_text='Seconds, or a text such as "3 hours".')
    deadline = Deadline(
        required=False,
        help_text='When the run fails if it has not ended: seconds or a text such as "30 days" from now, or a time.',
    )
    work_limit = Delay(
        required=False, help_text='For how long workers may work on it, without its waits: seconds, or "1 hour".'
    )
    on_conflict = serializers.ChoiceField(
        choices=["return", "error"], required=False, default="return", help_text="What an id that exists means."
    )
    key = Text(required=False, min_length=1, max_length=200, help_text="At most one open run of the workflow has it.")
    if_open = serializers.ChoiceField(
        choices=["return", "error", "replace"],
        required=False,
        help_text="What an open run with the key means: it is returned, refuses the start, or is cancelled.",
    )
    debounce = Delay(
        required=False,
        help_text="The run begins so long after this start, and after each further one with its key: seconds, or a text.",
    )
    at_most = Delay(required=False, help_text="Needed with `debounce`: so long after the first start at the latest.")
    keep = serializers.ChoiceField(
        choices=["last", "first"], required=False, help_text="With `debounce`: whose input it has, the last by default."
    )
    rate = Text(
        required=False,
        min_length=1,
        max_length=401,
        help_text="With `when_full`: the limit, and its key behind a slash. By default that of the workflow's own limit.",
    )
    when_full = serializers.ChoiceField(
        choices=["drop"],
        required=False,
        help_text="`drop`: the start takes a unit of the rate, and is refused (429) if the rate has no room now.",
    )
    priority = Text(
        required=False,
        min_length=1,
        max_length=100,
        help_text='A head start among due runs: a name of the project\'s PRIORITIES, "10 min", or "-1 hour" to put it back.',
    )
    share = Text(
        required=False, min_length=1, max_length=200, help_text="Runs of different shares of a queue take turns."
    )
    weight = Number(
        required=False, help_text="With `share`: how often such runs have a turn, from 0.001 to 1000; 1 by default."
    )
    tags = JSONObject(
        required=False,
        help_text="Names with values, text or numbers, by which the run is found; at most 8.",
    )
    message = StartMessageForm(
        required=False, help_text="Sent to the open run that has the key, or to the new one; needs `key`."
    )
    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class SendForm(Form):
    """A message."""

    queue = Text(min_length=1, max_length=128)
    body = Value(required=False, default=None, allow_null=True)
    id = Text(
        required=False,
        min_length=1,
        max_length=200,
        help_text="Makes the send idempotent for as long as the run exists.",
    )
    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class DeleteMessageForm(Form):
    """The reason."""

    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class MoveMessageForm(DeleteMessageForm):
    """The run that gets the message."""

    to = Text(min_length=1, max_length=200, help_text="The id of the run that gets the message.")


class AskForm(SendForm):
    """A message with a response."""


class NoteForm(Form):
    """A note on a cause."""

    note = Text(allow_blank=True, max_length=MAX_NOTE, help_text="For other operators; empty for none.")


class StackQuery(Query):
    """The step whose stack is wanted."""

    location = Text(max_length=1024)
