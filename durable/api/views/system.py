"""The endpoints beside runs: workflows with their signatures, queues, workers."""

from __future__ import annotations

import inspect
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

__all__ = ["AnywhereView", "QueuesView", "WorkersView", "WorkflowView", "WorkflowsView"]

_LONGEST_DEFAULT = 200  # characters
_HIDDEN = "…"


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
        shown = [_shown(each, may_see_payloads=may_see) for each in found]
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
        return Response(WorkflowSerializer(_shown(workflow, may_see_payloads=may(request, "view_payload"))).data)


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


class _Written:
    """An annotation, or the placeholder of a default, as it is written in a signature."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _shown(workflow: Workflow[Any, Any], *, may_see_payloads: bool) -> dict[str, Any]:
    _context, *parameters = (_written(each) for each in workflow.signature.parameters.values())
    if not may_see_payloads:
        parameters = [_without_default(each) for each in parameters]
    signature = inspect.Signature(parameters)
    return {
        "name": workflow.name,
        "queue": workflow.queue,
        "description": inspect.getdoc(workflow.function) or "",
        "signature": str(signature),
        "parameters": [_parameter(each) for each in parameters],
    }


def _written(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter
    return parameter.replace(annotation=_Written(parameter.annotation))


def _without_default(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter with its default replaced by a placeholder: the default may be a secret."""
    has_default = parameter.default is not inspect.Parameter.empty
    return parameter.replace(default=_Written(_HIDDEN)) if has_default else parameter


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    has_default = parameter.default is not inspect.Parameter.empty
    is_many = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        "name": parameter.name,
        "kind": parameter.kind.name.lower(),
        "is_required": not has_default and not is_many,
        "annotation": str(parameter.annotation) if isinstance(parameter.annotation, _Written) else "",
        "default": repr(parameter.default)[:_LONGEST_DEFAULT] if has_default else None,
    }
