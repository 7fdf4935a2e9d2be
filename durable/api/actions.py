"""Actions on one run with forms of their own: restart, replay, the output of a step, and the stacks of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durable import operations
from durable.api.base import View
from durable.api.fields import Flag, Form, Id, JSONObject, Query, QueryFlag, Text, Value, serializer_of
from durable.api.requests import Done, answered
from durable.api.runs import REFERENCES, reference
from durable.api.schema import described
from durable.api.verb_views import ActionForm, RunVerbView, StepForm
from durable.core.errors import EntryNotFoundError
from durable.core.ids import MAX_REASON
from durable.core.registry import UnknownWorkflowError
from durable.inspection.activities import read_stack
from durable.listings.access import actor_of, admit, seen_by, seen_of, visible_run
from durable.listings.history import ReplayPlan
from durable.listings.problems import ProblemError
from durable.listings.runs import RunReference
from durable.listings.shapes import data_of
from durable.listings.starts import made
from durable.listings.work import Stack
from durable.operations import Started
from durable.operations.audit import acting_as
from durable.operations.verbs import RUN_VERBS


class ActionView(View):
    """An action that answers with a run, which may be a new one."""

    about = "actions"

    def perform(
        self, request: Request, run_id: str, action: str, takes: type[Form], act: Callable[[dict[str, Any]], Started]
    ) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        admit(request, action, run_id)
        given = self.form(takes, request)

        def done() -> Done:
            run = made(given.get("id"), lambda: act(given))
            return reference(request, run.id, status=201 if run.is_new else 200)

        actor, seen = actor_of(request), given.get("revision")
        with acting_as(actor, reason=given["reason"], expected=seen, sees=seen_by(request)):
            return answered(request, done)


class StackQuery(Query):
    location = Text(max_length=1024)


class StackView(RunVerbView):
    verb = RUN_VERBS["take_stack"]
    takes = StepForm
    call = staticmethod(RUN_VERBS["take_stack"].call)
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


class RestartForm(ActionForm):
    """The id of the new run."""

    id = Id(required=False, help_text="Of the new run; the same id again is the same run.")


class EditForm(RestartForm):
    """The id of the new run, and what is changed of the input."""

    changes = JSONObject(
        required=False, default=dict, help_text="Arguments by name, instead of those of the input. The others stay."
    )


class RestartView(ActionView):
    @described(operation_id="restart_run", request=EditForm, responses=REFERENCES)
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Start a new run of the same workflow with the same input: 201.

        If an earlier restart created the run with this id: 200. Needs `durable.start_run`; with `changes` of the input
        `durable.edit_input` too.
        """

        def act(given: dict[str, Any]) -> Started:
            try:
                return operations.restart(run_id, as_id=given.get("id"), changes=given["changes"])
            except (ValueError, UnknownWorkflowError) as error:  # they do not fit the signature, or it is unknown here
                raise ProblemError("arguments-refused", 422, f"{error}.") from error

        return self.perform(request, run_id, "restart", EditForm, act)


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


class ReplayView(ActionView):
    @described(operation_id="replay_run", request=ReplayForm, responses=REFERENCES)
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Run again from a location in the history on, as a new run: 201; with `in_place`, as the same one: 200.

        Needs `durable.replay_run`. With `plan_hash`, the replay is refused if the history has changed since the plan.
        """

        def act(given: dict[str, Any]) -> Started:
            return operations.replay(run_id, given["location"], **_how(given))

        return self.perform(request, run_id, "replay", ReplayForm, act)


class GiveOutputForm(ReplayForm):
    """The location of a step, and the output that it is to have."""

    reason = Text(min_length=1, max_length=MAX_REASON, help_text="For the audit log, and recorded with the step.")
    output = Value(allow_null=True, help_text="As the step would have returned it.")


class GiveOutputView(ActionView):
    @described(operation_id="give_output", request=GiveOutputForm, responses=REFERENCES)
    def post(self, request: Request, run_id: str) -> HttpResponse:
        """Replay from a step that does not run again: it has completed with this output. As a new run: 201.

        With `in_place`, as the same run: 200. The step keeps who gave the output and why. Needs `durable.give_output`
        and `durable.replay_run`.
        """

        def act(given: dict[str, Any]) -> Started:
            return operations.give_output(run_id, given["location"], given["output"], **_how(given))

        return self.perform(request, run_id, "give_output", GiveOutputForm, act)


def _how(given: dict[str, Any]) -> dict[str, Any]:
    return {"in_place": given["in_place"], "plan_hash": given.get("plan_hash"), "as_id": given.get("id")}


class PlanQuery(Query):
    location = Text(max_length=1024)
    with_output = QueryFlag(
        required=False, default=False, help_text="The plan of giving the output of this step by hand."
    )


class PlanView(View):
    about = "actions"

    @described(operation_id="plan_replay", parameters=[PlanQuery], responses=serializer_of(ReplayPlan))
    def get(self, request: Request, run_id: str) -> Response:
        """Return what replaying the run from `location` would remove, run again, and keep. Changes nothing.

        Needs `durable.replay_run` too.
        """
        self.require(request, "replay_run", "Planning a replay")
        query = PlanQuery.read(request.query_params)
        visible_run(request, run_id)
        plan = operations.plan_replay(run_id, query["location"], with_output=query["with_output"])
        return Response(data_of(ReplayPlan, plan, seen_of(request)))
