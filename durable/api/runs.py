"""Runs: list, count, start, read, and wait for their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View, link, listed
from durable.api.fields import (
    Form,
    JSONArray,
    JSONObject,
    Number,
    Query,
    Text,
    Value,
    option_field,
    serializer_of,
)
from durable.api.idempotent import Done, answered
from durable.api.long_poll import MAX_WAIT, wait_for
from durable.api.schema import described
from durable.core.ids import MAX_REASON
from durable.core.places import Place
from durable.core.records import ENDED
from durable.definitions import Workflow
from durable.inspection.payloads import payload
from durable.inspection.workflows import count_by_state
from durable.listings.access import actor_of, admit, seen_by, seen_of, startable, visible_run
from durable.listings.runs import RUNS, Result, RunDetail, RunReference, error_of, seen_runs
from durable.listings.shapes import data_of
from durable.listings.starts import check_queue_served, made, reference_of, start_asked
from durable.listings.work import Counts
from durable.models import Run
from durable.operations.audit import acting_as
from durable.operations.start_options import START_OPTIONS

_EXPANDABLE = ("input", "output")


class RunQuery(Query):
    expand = Text(required=False, help_text="`input`, `output`, or both, separated by a comma.")

    def validate_expand(self, value: str) -> list[str]:
        names = value.split(",")
        if unknown := [name for name in names if name not in _EXPANDABLE]:
            raise ValidationError(f"{unknown[0]!r} cannot be expanded; {' and '.join(_EXPANDABLE)} can.")
        return names


class ResultQuery(Query):
    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


class StartMessageForm(Form):
    """A message to the run that has the key."""

    queue = Text(min_length=1, max_length=128)
    body = Value(required=False, default=None, allow_null=True)


class StartForm(Form):
    """The workflow to start, and the options of the start."""

    workflow = Text(max_length=200)
    args = JSONArray(required=False, default=list)
    kwargs = JSONObject(required=False, default=dict)
    message = StartMessageForm(
        required=False, help_text="Sent to the open run that has the key, or to the new one; needs `key`."
    )
    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        last = {name: fields.pop(name) for name in ("message", "reason")}
        return fields | {each.name: option_field(each) for each in START_OPTIONS} | last


#: The answers of endpoints that create a run, or find the one that they created before.
REFERENCES = {200: serializer_of(RunReference), 201: serializer_of(RunReference)}


class RunsView(View):
    about = "runs"
    is_list = True

    get = listed(RUNS)

    @described(operation_id="start_run", request=StartForm, responses=REFERENCES)
    def post(self, request: Request) -> HttpResponse:
        """Start a run: 201. With an id that exists, return its run: 200, or 409 if its workflow or input differ.

        Needs `durable.start_run`.
        """
        admit(request, "start", "")
        given = self.form(StartForm, request)
        workflow = startable(given["workflow"])
        check_queue_served(given.get("queue"))
        with acting_as(actor_of(request), reason=given["reason"], sees=seen_by(request)):
            return answered(request, lambda: _started(request, workflow, given))


class CountsView(View):
    about = "runs"
    is_list = True

    @described(operation_id="count_runs", responses=serializer_of(Counts))
    def get(self, request: Request) -> Response:
        """Return the number of runs in each state, counted up to a cap."""
        seen = seen_of(request)
        return Response(data_of(Counts, {"states": count_by_state(seen.within)}, seen))


class RunView(View):
    about = "runs"

    @described(operation_id="get_run", parameters=[RunQuery], responses=serializer_of(RunDetail))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run. Its input and output, which need `durable.view_payload`, are included on request."""
        expand = RunQuery.read(request.query_params).get("expand", [])
        if expand:
            self.require(request, "view_payload", "Seeing inputs and outputs")
        run = visible_run(request, run_id)
        return Response(data_of(RunDetail, run, seen_runs(seen_of(request), [run], expand=expand)))


class ResultView(View):
    about = "runs"
    reads_with = ("view_run", "view_payload")
    waits = True

    @described(operation_id="get_result", parameters=[ResultQuery], responses=serializer_of(Result))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run's output or error, as soon as it has ended, after `wait` seconds at most.

        A server that has many waiting requests already, or has one thread, answers at once.
        """
        wait = ResultQuery.read(request.query_params)["wait"]

        def ended() -> Run | None:
            run = visible_run(request, run_id)
            return run if run.state in ENDED else None

        run = wait_for(request, ended, wait) or visible_run(request, run_id)
        result = SimpleNamespace(
            id=run.id,
            state=run.state,
            has_ended=run.state in ENDED,
            output=payload(run.workflow, "output", run.output, Place(run.id, "output")),
            error=error_of(run, run.error, payloads=True),
        )
        return Response(data_of(Result, result, seen_of(request)))


def reference(request: Request, run_id: str, *, status: int = 200) -> Done:
    return Done(data=reference_of(run_id), status=status, location=link(request, "run", run_id=run_id))


def _started(request: Request, workflow: Workflow[Any, Any], given: dict[str, Any]) -> Done:
    run = made(given.get("id"), lambda: start_asked(workflow, given))
    return reference(request, run.id, status=201 if run.is_new else 200)
