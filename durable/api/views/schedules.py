"""Schedules: list, read, create, and the verbs on them.

Where `API_RUNS` limits the runs that a user sees, schedules are not available: a schedule starts runs for everybody.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import actor_of, admit, is_limited
from durable.api.idempotent import Done, answered
from durable.api.list_views import listed, seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.schedules import CreateScheduleForm
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.api.views.runs import startable
from durable.core.errors import ScheduleNotFoundError
from durable.inspection.schedules import ScheduleSummary, find_schedule
from durable.listings.schedules import SCHEDULES, Schedule, ScheduleDetail
from durable.listings.shapes import data_of
from durable.operations.audit import acting_as
from durable.operations.schedules import verbs


class ScheduleBase(View):
    """An endpoint of schedules."""

    about = "schedules"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse users whose runs are limited."""
        super().initial(request, *args, **kwargs)
        if is_limited():
            detail = (
                "Schedules start runs for everybody: they are not available where API_RUNS limits the runs of users."
            )
            raise ProblemError("permission-denied", 403, detail)


class SchedulesView(ScheduleBase):
    """All schedules."""

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
            return Done(data=data_of(Schedule, found_schedule(made.name), seen_of(request)), status=201)

        with acting_as(actor_of(request), reason=reason):
            return answered(request, done)


class ScheduleView(ScheduleBase):
    """One schedule."""

    @described(operation_id="get_schedule", responses=serializer_of(ScheduleDetail))
    def get(self, request: Request, name: str) -> Response:
        """Return the schedule with its newest ticks, at most 200."""
        found = find_schedule(name, runtime.current().now())
        if found is None:
            raise missing(name)
        return Response(data_of(ScheduleDetail, found, seen_of(request)))


def found_schedule(name: str) -> ScheduleSummary:
    """Return the schedule as it is. Raises ScheduleNotFoundError."""
    found = find_schedule(name, runtime.current().now())
    if found is None:
        raise ScheduleNotFoundError(name)
    return found


def missing(name: str) -> ProblemError:
    """Return what a name that no schedule has is answered."""
    return ProblemError("not-found", 404, f'No schedule has the name "{name[:200]}".')
