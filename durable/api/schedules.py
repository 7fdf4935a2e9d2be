"""Schedules: list, read, create, and the forms of the verbs on them.

Where `API_RUNS` limits the runs that a user sees, schedules are not available: a schedule starts runs for everybody.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View, listed
from durable.api.fields import (
    Delay,
    Flag,
    JSONArray,
    JSONObject,
    Moment,
    Text,
    VerbForm,
    checked,
    option_field,
    serializer_of,
)
from durable.api.requests import Done, answered
from durable.api.schema import described
from durable.core.ids import MAX_ID, check_queue
from durable.inspection.schedules import find_schedule
from durable.listings.access import actor_of, admit, refuse_schedules_if_limited, seen_of, startable
from durable.listings.problems import ProblemError
from durable.listings.schedules import SCHEDULES, Schedule, ScheduleDetail
from durable.listings.shapes import data_of
from durable.operations.audit import acting_as
from durable.operations.catalogue import RULE, ZONE
from durable.operations.schedules import verbs
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
    def to_internal_value(self, data: Any) -> str:
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
    def to_internal_value(self, data: Any) -> str:
        return checked(check_name, super().to_internal_value(data))


class CreateScheduleForm(EditScheduleForm):
    """A new schedule."""

    name = NameText(min_length=1, max_length=MAX_NAME, help_text="The ids of its runs begin with it.")
    workflow = Text(max_length=MAX_ID)
    rule = option_field(RULE)
    revision = None  # type: ignore[assignment]  # there is none yet


class ScheduleBase(View):
    about = "schedules"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse users who may see only some runs."""
        super().initial(request, *args, **kwargs)
        refuse_schedules_if_limited()


class SchedulesView(ScheduleBase):
    is_list = True

    get = listed(SCHEDULES)

    @described(operation_id="create_schedule", request=CreateScheduleForm, responses={201: serializer_of(Schedule)})
    def post(self, request: Request) -> HttpResponse:
        """Create a schedule that operators own. Needs `durable.add_schedule` and `durable.start_run`.

        409 for a name that is taken.
        """
        admit(request, "create_schedule", "")
        given = self.form(CreateScheduleForm, request)
        startable(given["workflow"])
        reason = given.pop("reason")

        def done() -> Done:
            try:
                made = verbs.create(given.pop("name"), given.pop("workflow"), given.pop("rule"), **given)
            except (TypeError, ValueError) as error:
                raise ProblemError("arguments-refused", 422, f"{error}.") from None
            seen = seen_of(request)
            return Done(data=data_of(Schedule, find_schedule(made.name, seen.now), seen), status=201)

        with acting_as(actor_of(request), reason=reason):
            return answered(request, done)


class ScheduleView(ScheduleBase):
    @described(operation_id="get_schedule", responses=serializer_of(ScheduleDetail))
    def get(self, request: Request, name: str) -> Response:
        """Return the schedule with its newest ticks, at most 200."""
        seen = seen_of(request)
        if (found := find_schedule(name, seen.now)) is None:
            raise ProblemError("not-found", 404, f'No schedule has the name "{name[:200]}".')
        return Response(data_of(ScheduleDetail, found, seen))
