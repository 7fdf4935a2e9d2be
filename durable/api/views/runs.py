"""Runs: list, count, start, read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, is_limited, seen_by, visible_run, visible_runs
from durable.api.create import made
from durable.api.idempotent import Done, answered
from durable.api.list_views import listed, seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.actions import StartForm
from durable.api.serializers.runs import RunQuery
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View, link
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.core.registry import UnknownWorkflowError
from durable.definitions import Workflow
from durable.inspection.workflows import count_by_state
from durable.listings.runs import RUNS, RunDetail, RunReference, seen_runs
from durable.listings.shapes import data_of
from durable.listings.work import Counts
from durable.models import Run
from durable.notifier import redis_clients
from durable.operations import Started
from durable.operations.audit import acting_as
from durable.operations.common import workflow_named
from durable.operations.start_options import START_OPTIONS

#: The prefix of durable's own workflows: outsiders may not write their input.
INTERNAL = "durable."


class RunsView(View):
    """All runs."""

    about = "runs"

    get = listed(RUNS)

    @described(
        operation_id="start_run",
        request=StartForm,
        responses={200: serializer_of(RunReference), 201: serializer_of(RunReference)},
    )
    def post(self, request: Request) -> HttpResponse:
        """Start a run: 201. With an id that exists, return its run: 200, or 409 if its workflow or input differ.

        Needs `durable.start_run`.
        """
        admit(request, "start", "")
        given = self.form(StartForm, request)
        workflow = startable(given["workflow"])
        _check_queue(given.get("queue"))
        with acting_as(actor_of(request), reason=given["reason"], sees=seen_by(request)):
            return answered(request, lambda: _started(request, workflow, given))


class CountsView(View):
    """The number of runs."""

    about = "runs"

    @described(operation_id="count_runs", responses=serializer_of(Counts))
    def get(self, request: Request) -> Response:
        """Return the number of runs in each state, counted up to a cap."""
        counts = count_by_state(visible_runs(request) if is_limited() else None)
        return Response(data_of(Counts, SimpleNamespace(states=counts), seen_of(request)))


class RunView(View):
    """One run."""

    about = "runs"

    @described(operation_id="get_run", parameters=[RunQuery], responses=serializer_of(RunDetail))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run. Its input and output, which need `durable.view_payload`, are included on request."""
        expand = RunQuery.read(request.query_params).get("expand", [])
        if expand:
            self.require(request, "view_payload", "Seeing inputs and outputs")
        run = visible_run(request, run_id)
        return Response(data_of(RunDetail, run, seen_runs(seen_of(request), [run], expand=expand)))


def reference(request: Request, run_id: str, *, status: int = 200) -> Done:
    """Return an answer that names a run."""
    run = Run.objects.using(conf.DATABASE).only("id", "workflow", "state").filter(pk=run_id).first()
    if run is None:
        raise RunNotFoundError(run_id)
    data = {"id": run.id, "workflow": run.workflow, "state": run.state}
    return Done(data=data, status=status, location=link(request, "run", run_id=run_id))


def startable(name: str) -> Workflow[Any, Any]:
    """Return the workflow of this name. Raises a problem if there is none, or if it may not be started over REST."""
    try:
        found, problem = workflow_named(name), None
    except UnknownWorkflowError as error:
        found, problem = None, error
    if not is_offered(name) and (found is None or not is_offered(found.name)):
        raise ProblemError("unknown-workflow", 422, f'No workflow "{name}" can be started over REST in this project.')
    if problem is not None:
        nearest = [each for each in problem.nearest if is_offered(each)]
        raise ProblemError("unknown-workflow", 422, f"{problem}.", nearest=nearest) from None
    if not isinstance(found, Workflow):
        raise ProblemError("unknown-workflow", 422, f'"{name}" is started by durable itself, and not from here.')
    return found


def is_offered(name: str) -> bool:
    """Return whether the settings allow starting this workflow over REST; durable's own workflows are excluded."""
    if name.startswith(INTERNAL):
        return False
    names = conf.API_WORKFLOWS
    return names is None or any(name == each or (each.endswith(".") and name.startswith(each)) for each in names)


def _check_queue(queue: str | None) -> None:
    names = sorted(redis_clients.queue_names())
    if queue is not None and queue not in names and conf.REDIS:
        detail = f"No worker can serve this queue: the project's queues are {', '.join(names)}."
        errors = [{"at": "queue", "detail": detail, "code": "unknown"}]
        raise ProblemError("invalid-request", 400, f"queue: {detail}", errors=errors)


def _started(request: Request, workflow: Workflow[Any, Any], given: dict[str, Any]) -> Done:
    run = made(given.get("id"), lambda: _start(workflow, given))
    return reference(request, run.id, status=201 if run.is_new else 200)


def _start(workflow: Workflow[Any, Any], given: dict[str, Any]) -> Started:
    try:
        how = workflow.using(**{name: given[name] for name in START_OPTIONS if name in given})
        if (message := given.get("message")) is None:
            handle = how.start(*given["args"], **given["kwargs"])
        else:
            handle = how.start_or_send(message["queue"], message["body"], *given["args"], **given["kwargs"])
    except (TypeError, ValueError) as error:
        raise ProblemError("arguments-refused", 422, f"{error}.") from None
    return Started(handle.id, bool(handle.is_new))
