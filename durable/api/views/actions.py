"""Actions on one run: each checks the permission, calls its verb once, and answers with the resulting run."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from durable import operations
from durable.api.access import actor_of, admit, seen_by, visible_run
from durable.api.create import made
from durable.api.idempotent import Done, answered
from durable.api.list_views import seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.actions import (
    ActionForm,
    EditForm,
    GiveOutputForm,
    ReplayForm,
    StackQuery,
    StepForm,
)
from durable.api.serializers.fields import Form
from durable.api.serializers.replay import PlanQuery, PlanSerializer
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.api.views.runs import reference
from durable.core.errors import EntryNotFoundError
from durable.core.registry import UnknownWorkflowError
from durable.inspection.activities import read_stack
from durable.listings.runs import RunReference
from durable.listings.shapes import data_of
from durable.listings.work import Stack
from durable.operations import Started
from durable.operations.audit import acting_as
from durable.operations.verbs import RUN_VERBS


class ActionView(View):
    """One verb."""

    about = "actions"
    action: ClassVar[str]
    takes: ClassVar[type[Form]] = ActionForm

    def act(self, run_id: str, given: dict[str, Any]) -> Started | None:
        """Call the verb; return the resulting run, if that may be another one."""
        verb = RUN_VERBS[self.action]
        verb.call(run_id, **{each.name: given[each.name] for each in verb.options})
        return None

    def perform(self, request: Request, run_id: str) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        admit(request, self.action, run_id)
        given = self.form(self.takes, request)

        def act() -> Started:
            return self.act(run_id, given) or Started(run_id, is_new=False)

        def done() -> Done:
            run = made(given.get("id"), act)
            return reference(request, run.id, status=201 if run.is_new else 200)

        actor, seen = actor_of(request), given.get("revision")
        with acting_as(actor, reason=given["reason"], expected=seen, sees=seen_by(request)):
            return answered(request, done)


class StackView(ActionView):
    """The stacks of steps that run."""

    action = "take_stack"
    takes = StepForm
    reads_with = ("view_run", "view_payload")

    @described(operation_id="read_stack", parameters=[StackQuery], responses=serializer_of(Stack))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the stack of the step that runs at `location`; 404 if none runs there.

        It is empty until it was requested and the worker has answered. Needs `durable.view_payload` too.
        """
        self.require(request, "view_payload", "Seeing stacks")
        location = StackQuery.read(request.query_params)["location"]
        found = read_stack(visible_run(request, run_id), location, timezone.now())
        if found is None:
            raise EntryNotFoundError(run_id, location)
        return Response(data_of(Stack, found, seen_of(request)))

    @described(operation_id="request_stack", request=StepForm, responses=serializer_of(RunReference))
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Ask the worker where the steps that run are at this moment. It answers within a few seconds.

        Needs `durable.view_payload`.
        """
        return self.perform(request, run_id)


class RestartView(ActionView):
    """Restart a run."""

    action = "restart"
    takes = EditForm

    @described(
        operation_id="restart_run",
        request=EditForm,
        responses={200: serializer_of(RunReference), 201: serializer_of(RunReference)},
    )
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Start a new run of the same workflow with the same input: 201.

        If an earlier restart created the run with this id: 200. Needs `durable.start_run`; with `changes` of the input
        `durable.edit_input` too.
        """
        return self.perform(request, run_id)

    def act(self, run_id: str, given: dict[str, Any]) -> Started:
        """Restart."""
        try:
            return operations.restart(run_id, as_id=given.get("id"), changes=given["changes"])
        except (ValueError, UnknownWorkflowError) as error:  # they do not fit the signature, or it is unknown here
            raise ProblemError("arguments-refused", 422, f"{error}.") from error


class ReplayView(ActionView):
    """Replay a run."""

    action = "replay"
    takes = ReplayForm

    @described(
        operation_id="replay_run",
        request=ReplayForm,
        responses={200: serializer_of(RunReference), 201: serializer_of(RunReference)},
    )
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Run again from a location in the history on, as a new run: 201; with `in_place`, as the same one: 200.

        Needs `durable.replay_run`. With `plan_hash`, the replay is refused if the history has changed since the plan.
        """
        return self.perform(request, run_id)

    def act(self, run_id: str, given: dict[str, Any]) -> Started:
        """Replay."""
        return operations.replay(
            run_id,
            given["location"],
            in_place=given["in_place"],
            plan_hash=given.get("plan_hash"),
            as_id=given.get("id"),
        )


class GiveOutputView(ActionView):
    """Give the output of a step by hand."""

    action = "give_output"
    takes = GiveOutputForm

    @described(
        operation_id="give_output",
        request=GiveOutputForm,
        responses={200: serializer_of(RunReference), 201: serializer_of(RunReference)},
    )
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Replay from a step that does not run again: it has completed with this output. As a new run: 201.

        With `in_place`, as the same run: 200. The step keeps who gave the output and why. Needs `durable.give_output`
        and `durable.replay_run`.
        """
        return self.perform(request, run_id)

    def act(self, run_id: str, given: dict[str, Any]) -> Started:
        """Give the output."""
        return operations.give_output(
            run_id,
            given["location"],
            given["output"],
            in_place=given["in_place"],
            plan_hash=given.get("plan_hash"),
            as_id=given.get("id"),
        )


class PlanView(View):
    """The plan of a replay."""

    about = "actions"

    @described(operation_id="plan_replay", parameters=[PlanQuery], responses=PlanSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return what replaying the run from `location` would remove, run again, and keep. Changes nothing.

        Needs `durable.replay_run` too.
        """
        self.require(request, "replay_run", "Planning a replay")
        query = PlanQuery.read(request.query_params)
        visible_run(request, run_id)
        plan = operations.plan_replay(run_id, query["location"], with_output=query["with_output"])
        return Response(PlanSerializer(plan).data)
