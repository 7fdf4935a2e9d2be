"""The endpoints beside runs: workflows with their signatures and numbers, queues, workers."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import is_limited, may, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.system import (
    QueueListSerializer,
    WorkerListSerializer,
    WorkflowListSerializer,
    WorkflowSerializer,
)
from durable.api.serializers.workflow_stats import WorkflowStatsSerializer
from durable.api.views.base import View
from durable.api.views.runs import is_offered, startable
from durable.conf import conf
from durable.core import registry
from durable.core.records import HoldKind
from durable.definitions import Workflow
from durable.inspection import count_held_starts, find_hold, list_queues, worker_overview
from durable.inspection.counting import added
from durable.inspection.queues import CAP as HELD_CAP
from durable.inspection.workflow_code import code_of
from durable.inspection.workflows import builds_in_flight, workflow_of, workflow_stats
from durable.models.run import RunQuerySet


class WorkflowsView(View):
    """The workflows that can be started."""

    about = "surroundings"

    @described(operation_id="list_workflows", responses=WorkflowListSerializer)
    def get(self, request: Request) -> Response:
        """Return all workflows that this process knows and that may be started over REST, by name.

        Defaults of their parameters need `durable.view_payload`.
        """
        found = [each for each in registry.all() if isinstance(each, Workflow) and is_offered(each.name)]
        may_see = may(request, "view_payload")
        shown = [_shown(each, may_see) for each in found]
        return Response({"results": WorkflowSerializer(shown, many=True).data})


class WorkflowView(View):
    """One workflow."""

    about = "surroundings"

    @described(operation_id="get_workflow", responses=WorkflowSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow, with the parameters of its start. Their defaults need `durable.view_payload`."""
        try:
            workflow = startable(name)
        except ProblemError as error:
            raise ProblemError("not-found", 404, error.problem.detail) from None
        return Response(WorkflowSerializer(_shown(workflow, may(request, "view_payload"))).data)


class WorkflowStatsView(View):
    """One workflow in numbers."""

    about = "surroundings"

    @described(operation_id="get_workflow_stats", responses=WorkflowStatsSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow in numbers.

        They say how long its runs and their steps took, where open runs stand, its hold with held starts, and its
        builds. A workflow that cannot be started over REST, or of which only runs are left, has numbers if you see a
        run of it.
        """
        within, found = _visible(request), workflow_of(name)
        definition = found.definition
        is_startable = isinstance(definition, Workflow) and any(map(is_offered, found.names))
        if not is_startable and not visible_runs(request).filter(workflow__in=found.names).exists():
            detail = f'There is no workflow "{name}": it cannot be started over REST, and no run of it was found.'
            raise ProblemError("not-found", 404, detail)
        builds = builds_in_flight(worker_overview(within), conf.QUEUE if definition is None else definition.queue)
        data = {
            "name": found.name,
            "other_names": found.other_names,
            "stats": workflow_stats(found.names, within),
            "hold": find_hold(HoldKind.WORKFLOW, found.name),
            "held_starts": added(count_held_starts(found.names, within).values(), HELD_CAP),
            "builds": [{"build": build, "workers": number} for build, number in builds],
        }
        return Response(WorkflowStatsSerializer(data).data)


class QueuesView(View):
    """The queues."""

    about = "surroundings"

    @described(operation_id="list_queues", responses=QueueListSerializer)
    def get(self, request: Request) -> Response:
        """Return the queues of the project, of runs and of pauses.

        Each says what is due and in hand, what comes in and goes out, and who serves it.
        """
        within = _visible(request)
        found = worker_overview(within)
        queues = list_queues(runtime.current().now(), found, within=within)
        data = {"results": queues, "problem": found.problem, "uses_redis": found.uses_redis}
        return Response(QueueListSerializer(data).data)


class WorkersView(View):
    """The workers."""

    about = "surroundings"

    @described(operation_id="list_workers", responses=WorkerListSerializer)
    def get(self, request: Request) -> Response:
        """Return the worker processes, with the runs that each is executing; those killed in the last hour as dead."""
        found = worker_overview(_visible(request))
        data = {"results": found.workers, "problem": found.problem, "uses_redis": found.uses_redis}
        return Response(WorkerListSerializer(data).data)


class AnywhereView(View):
    """Every URL below the interface's prefix that is not an endpoint."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request, path: str) -> Response:
        """Return a problem document, not an HTML page."""
        raise ProblemError("not-found", 404, "There is nothing at this address. An id in it has to be percent-encoded.")

    @described(exclude=True)
    def post(self, request: Request, path: str) -> Response:
        """Do what `get` does."""
        return self.get(request, path)


def _visible(request: Request) -> RunQuerySet | None:
    """Return the runs that this user may see; None if all are visible."""
    return visible_runs(request) if is_limited() else None


def _shown(workflow: Workflow[Any, Any], may_see_payloads: bool) -> Any:
    return code_of(workflow, may_see_payloads=may_see_payloads)
