"""The endpoints beside runs: workflows with their signatures and numbers, queues, workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable import definitions
from durable.api.access import is_limited, may, visible_runs
from durable.api.list_views import seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.api.views.runs import is_offered, startable
from durable.conf import conf
from durable.core import registry
from durable.core.records import HoldKind
from durable.inspection.counting import added
from durable.inspection.queues import CAP as HELD_CAP
from durable.inspection.queues import count_held_starts, find_hold
from durable.inspection.workers import worker_overview
from durable.inspection.workflow_code import code_of
from durable.inspection.workflows import builds_in_flight, workflow_of, workflow_stats
from durable.listings.listing import Page
from durable.listings.shapes import data_of
from durable.listings.workflows import Workflow, WorkflowList, WorkflowStats
from durable.models.run import RunQuerySet


class WorkflowsView(View):
    """The workflows that can be started."""

    about = "surroundings"

    @described(operation_id="list_workflows", responses=serializer_of(WorkflowList))
    def get(self, request: Request) -> Response:
        """Return all workflows that this process knows and that may be started over REST, by name.

        Defaults of their parameters need `durable.view_payload`.
        """
        found = [each for each in registry.all() if isinstance(each, definitions.Workflow) and is_offered(each.name)]
        may_see = may(request, "view_payload")
        shown = [_shown(each, may_see) for each in found]
        return Response(data_of(WorkflowList, Page(results=shown), seen_of(request)))


class WorkflowView(View):
    """One workflow."""

    about = "surroundings"

    @described(operation_id="get_workflow", responses=serializer_of(Workflow))
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow, with the parameters of its start. Their defaults need `durable.view_payload`."""
        try:
            workflow = startable(name)
        except ProblemError as error:
            raise ProblemError("not-found", 404, error.problem.detail) from None
        return Response(data_of(Workflow, _shown(workflow, may(request, "view_payload")), seen_of(request)))


class WorkflowStatsView(View):
    """One workflow in numbers."""

    about = "surroundings"

    @described(operation_id="get_workflow_stats", responses=serializer_of(WorkflowStats))
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow in numbers.

        They say how long its runs and their steps took, where open runs stand, its hold with held starts, and its
        builds. A workflow that cannot be started over REST, or of which only runs are left, has numbers if you see a
        run of it.
        """
        within, found = _visible(request), workflow_of(name)
        definition = found.definition
        is_startable = isinstance(definition, definitions.Workflow) and any(map(is_offered, found.names))
        if not is_startable and not visible_runs(request).filter(workflow__in=found.names).exists():
            detail = f'There is no workflow "{name}": it cannot be started over REST, and no run of it was found.'
            raise ProblemError("not-found", 404, detail)
        builds = builds_in_flight(worker_overview(within), conf.QUEUE if definition is None else definition.queue)
        numbers = SimpleNamespace(
            name=found.name,
            other_names=found.other_names,
            stats=workflow_stats(found.names, within),
            hold=find_hold(HoldKind.WORKFLOW, found.name),
            held_starts=added(count_held_starts(found.names, within).values(), HELD_CAP),
            builds=[SimpleNamespace(build=build, workers=number) for build, number in builds],
        )
        return Response(data_of(WorkflowStats, numbers, seen_of(request)))


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


def _shown(workflow: definitions.Workflow[Any, Any], may_see_payloads: bool) -> Any:
    return code_of(workflow, may_see_payloads=may_see_payloads)
