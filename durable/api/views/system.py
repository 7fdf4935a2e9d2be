"""The endpoints beside runs: workflows with their signatures, queues, workers."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import is_limited, may, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.system import (
    QueueListSerializer,
    WorkerListSerializer,
    WorkflowListSerializer,
    WorkflowSerializer,
)
from durable.api.views.base import View
from durable.api.views.runs import is_offered, startable
from durable.core import registry
from durable.definitions import Workflow
from durable.inspection import Workers, worker_overview
from durable.inspection.workflow_code import code_of

__all__ = ["AnywhereView", "QueuesView", "WorkersView", "WorkflowView", "WorkflowsView"]


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


class QueuesView(View):
    """The queues."""

    about = "surroundings"

    @described(operation_id="list_queues", responses=QueueListSerializer)
    def get(self, request: Request) -> Response:
        """Return the queues of the project and of runs, with the number of workers that serve each."""
        found = _look(request)
        data = {"results": found.queues, "problem": found.problem, "uses_redis": found.uses_redis}
        return Response(QueueListSerializer(data).data)


class WorkersView(View):
    """The workers."""

    about = "surroundings"

    @described(operation_id="list_workers", responses=WorkerListSerializer)
    def get(self, request: Request) -> Response:
        """Return the worker processes, with the runs that each is executing; those killed in the last hour as dead."""
        found = _look(request)
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


def _look(request: Request) -> Workers:
    return worker_overview(visible_runs(request) if is_limited() else None)


def _shown(workflow: Workflow[Any, Any], may_see_payloads: bool) -> Any:
    return code_of(workflow, may_see_payloads=may_see_payloads)
