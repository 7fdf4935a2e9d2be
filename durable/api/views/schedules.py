"""Schedules: list, read, create, and the verbs on them.

Where `API_RUNS` limits the runs that a user sees, schedules are not available: a schedule starts runs for everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import actor_of, admit, is_limited
from durable.api.idempotent import Done, answered
from durable.api.paging import cursor_of, key_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.fields import Form
from durable.api.serializers.schedules import (
    BackfillForm,
    BackfillSerializer,
    CreateScheduleForm,
    EditScheduleForm,
    OverrideForm,
    RunScheduleForm,
    ScheduleDetailSerializer,
    ScheduleForm,
    ScheduleListQuery,
    SchedulePageSerializer,
    ScheduleSerializer,
    TickSerializer,
)
from durable.api.views.base import View
from durable.api.views.runs import startable
from durable.core.errors import ScheduleNotFoundError
from durable.inspection.schedules import find_schedule, list_schedules, ticks_of
from durable.operations.audit import acting_as
from durable.operations.schedules import verbs


class _ScheduleView(View):
    about = "schedules"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse users whose runs are limited."""
        super().initial(request, *args, **kwargs)
        if is_limited():
            detail = (
                "Schedules start runs for everybody: they are not available where API_RUNS limits the runs of users."
            )
            raise ProblemError("permission-denied", 403, detail)


class SchedulesView(_ScheduleView):
    """All schedules."""

    @described(operation_id="list_schedules", parameters=[ScheduleListQuery], responses=SchedulePageSerializer)
    def get(self, request: Request) -> Response:
        """Return the schedules by name."""
        query = ScheduleListQuery.read(request.query_params)
        key = key_of(query.get("cursor"), str)
        found, after = list_schedules(
            runtime.current().now(),
            after=key[0] if key else "",
            workflow=query["workflow"],
            most=query["limit"],
            with_ticks=False,
        )
        return Response(
            {
                "results": ScheduleSerializer(found, many=True).data,
                "next_cursor": cursor_of(after) if after else None,
            }
        )

    @described(operation_id="create_schedule", request=CreateScheduleForm, responses={201: ScheduleSerializer})
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
            return Done(data=_shown(made.name), status=201)

        with acting_as(actor_of(request), reason=reason):
            return answered(request, done)


class ScheduleView(_ScheduleView):
    """One schedule."""

    @described(operation_id="get_schedule", responses=ScheduleDetailSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return the schedule with its newest ticks, at most 200."""
        found = find_schedule(name, runtime.current().now())
        if found is None:
            raise _missing(name)
        data = dict(ScheduleSerializer(found).data)
        return Response({**data, "ticks": TickSerializer(ticks_of(found.schedule), many=True).data})


class _VerbView(_ScheduleView):
    action: ClassVar[str]
    takes: ClassVar[type[Form]] = ScheduleForm

    def perform(self, request: Request, name: str, act: Callable[[dict[str, Any]], dict[str, Any]]) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        admit(request, self.action, "")
        given = self.form(self.takes, request)
        reason, seen = given.pop("reason"), given.pop("revision", None)

        def done() -> Done:
            try:
                return Done(data=act(given))
            except ScheduleNotFoundError:
                raise _missing(name) from None
            except (TypeError, ValueError) as error:
                raise ProblemError("arguments-refused", 422, f"{error}.") from None

        with acting_as(actor_of(request), reason=reason, expected=seen):
            return answered(request, done)


class PauseScheduleView(_VerbView):
    """Pause a schedule."""

    action = "pause_schedule"

    @described(operation_id="pause_schedule", request=ScheduleForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Let the schedule start nothing until it is resumed. Needs `durable.operate_schedule`."""
        return self.perform(request, name, lambda _: _shown(verbs.pause(name).name))


class ResumeScheduleView(_VerbView):
    """Resume a schedule."""

    action = "resume_schedule"

    @described(operation_id="resume_schedule", request=ScheduleForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Let the schedule tick again, from its next moment on. Needs `durable.operate_schedule`."""
        return self.perform(request, name, lambda _: _shown(verbs.resume(name).name))


class RunScheduleView(_VerbView):
    """Run a schedule now."""

    action = "run_schedule"
    takes = RunScheduleForm

    @described(operation_id="run_schedule", request=RunScheduleForm, responses=TickSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Tick the schedule now, by its `overlap` unless `force` is given. Needs `durable.operate_schedule`.

        The outcome says whether a run was started.
        """
        return self.perform(request, name, lambda given: dict(TickSerializer(verbs.run_now(name, **given)).data))


class BackfillView(_VerbView):
    """Backfill a schedule."""

    action = "backfill_schedule"
    takes = BackfillForm

    @described(operation_id="backfill_schedule", request=BackfillForm, responses=BackfillSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Start the runs of a period's moments that have none, at most 200. Needs `durable.operate_schedule`."""

        def act(given: dict[str, Any]) -> dict[str, Any]:
            planned = verbs.plan_backfill(name, given["since"], given["until"])
            ticks = [] if given["dry_run"] else verbs.backfill(name, given["since"], given["until"])
            shown = {"moments": planned.moments, "existing": planned.existing, "ticks": ticks}
            return dict(BackfillSerializer(shown).data)

        return self.perform(request, name, act)


class EditScheduleView(_VerbView):
    """Edit a schedule."""

    action = "edit_schedule"
    takes = EditScheduleForm

    @described(operation_id="edit_schedule", request=EditScheduleForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Change a schedule that operators own; what is left out stays.

        Needs `durable.change_schedule` and `durable.start_run`.
        """

        def act(given: dict[str, Any]) -> dict[str, Any]:
            no_window = "window" in given and given["window"] is None
            return _shown(verbs.edit(name, no_window=no_window, **given).name)

        return self.perform(request, name, act)


class OverrideView(_VerbView):
    """Override the rule of a schedule."""

    action = "override_schedule"
    takes = OverrideForm

    @described(operation_id="override_schedule", request=OverrideForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Put a rule in force instead of the code's, until it is taken back. Needs `durable.change_schedule`."""

        def act(given: dict[str, Any]) -> dict[str, Any]:
            return _shown(verbs.override(name, given["rule"], zone=given.get("zone")).name)

        return self.perform(request, name, act)


class TakeBackView(_VerbView):
    """Take an override back."""

    action = "take_back_override"

    @described(operation_id="take_back_override", request=ScheduleForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Put the code's rule in force again. Needs `durable.change_schedule`."""
        return self.perform(request, name, lambda _: _shown(verbs.take_back(name).name))


class DeleteScheduleView(_VerbView):
    """Delete a schedule."""

    action = "delete_schedule"

    @described(operation_id="delete_schedule", request=ScheduleForm, responses=ScheduleSerializer)
    def post(self, request: Request, name: str) -> HttpResponse:
        """Delete a schedule that operators own, and its ticks; return it as it was. Needs `durable.delete_schedule`.

        Its runs stay.
        """

        def act(_: dict[str, Any]) -> dict[str, Any]:
            shown = _shown(name)
            verbs.delete(name)
            return shown

        return self.perform(request, name, act)


def _shown(name: str) -> dict[str, Any]:
    found = find_schedule(name, runtime.current().now())
    if found is None:
        raise ScheduleNotFoundError(name)
    return dict(ScheduleSerializer(found).data)


def _missing(name: str) -> ProblemError:
    return ProblemError("not-found", 404, f'No schedule has the name "{name[:200]}".')
