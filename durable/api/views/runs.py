"""Runs: list, count, start, read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, is_limited, seen_by, visible_run, visible_runs
from durable.api.create import made
from durable.api.idempotent import Done, answered
from durable.api.list_views import seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.actions import StartForm
from durable.api.serializers.runs import (
    RunDetailSerializer,
    RunListQuery,
    RunPageSerializer,
    RunQuery,
    RunReferenceSerializer,
    RunSerializer,
)
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View, link
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.core.registry import UnknownWorkflowError
from durable.definitions import Workflow
from durable.inspection import RunCriteria, RunOrder, activities_of_runs, count_by_state, list_runs, paused_of
from durable.inspection.forks import failed_places
from durable.inspection.runs import WINDOW, hides_alerts, settle_roots
from durable.listings.shapes import data_of
from durable.listings.work import Counts
from durable.models import Run
from durable.notifier import redis_clients
from durable.operations import Started
from durable.operations.audit import acting_as
from durable.operations.names import workflow_named
from durable.operations.start_options import START_OPTIONS

#: The prefix of durable's own workflows: outsiders may not write their input.
INTERNAL = "durable."


class RunsView(View):
    """All runs."""

    about = "runs"

    @described(operation_id="list_runs", parameters=[RunListQuery], responses=RunPageSerializer)
    def get(self, request: Request) -> Response:
        """Return the runs that match, the newest first unless `sort` says otherwise; by id with `id_prefix`."""
        query = RunListQuery.read(request.query_params)
        cursor, limit, order = query.pop("cursor", None), query.pop("limit"), RunOrder(query.pop("sort"))
        wanted = RunCriteria(
            states=frozenset(query.pop("state", ())),
            error_text=query.pop("error", ""),
            is_undone=query.pop("undone"),
            is_stuck=query.pop("stuck"),
            is_diverged=query.pop("diverged"),
            needs_attention=query.pop("attention"),
            only_roots=not query.pop("children"),
            hides_alerts=hides_alerts(unless=query.pop("alerts")),
            tags=query.pop("tag", ()),
            **query,
        )
        within = visible_runs(request) if is_limited() else None
        page = list_runs(settle_roots(wanted), order=order, cursor=cursor, limit=limit, within=within)
        runs: Any = page.runs  # many=True takes several
        now = timezone.now()
        beside = {
            "running": activities_of_runs(page.runs, now),
            "paused": paused_of(page.runs, now),
            "places": failed_places(page.runs),
        }
        shown = RunSerializer(runs, many=True, context={**self.context_for(request, runs), **beside}).data
        looked_through = WINDOW if page.is_window else None
        return Response({"results": shown, "next_cursor": page.next_cursor, "looked_through": looked_through})

    @described(
        operation_id="start_run",
        request=StartForm,
        responses={200: RunReferenceSerializer, 201: RunReferenceSerializer},
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

    @described(operation_id="get_run", parameters=[RunQuery], responses=RunDetailSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run. Its input and output, which need `durable.view_payload`, are included on request."""
        expand = RunQuery.read(request.query_params).get("expand", [])
        if expand:
            self.require(request, "view_payload", "Seeing inputs and outputs")
        run = visible_run(request, run_id)
        context = {**self.context_for(request, [run]), "expand": expand}
        return Response(RunDetailSerializer(run, context=context).data)


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
