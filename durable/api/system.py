"""The endpoints beside runs: workflows with their signatures and numbers, and notes on causes."""

from __future__ import annotations

from types import SimpleNamespace

from rest_framework.request import Request
from rest_framework.response import Response

from durable import definitions
from durable.api.base import View
from durable.api.fields import Form, Text, serializer_of
from durable.api.schema import described
from durable.conf import conf
from durable.core import registry
from durable.core.records import HoldKind
from durable.inspection.causes import find_cause
from durable.inspection.counting import added
from durable.inspection.humanize import sentence
from durable.inspection.queues import CAP as HELD_CAP
from durable.inspection.queues import count_held_starts, find_hold
from durable.inspection.workers import worker_overview
from durable.inspection.workflow_code import code_of
from durable.inspection.workflows import builds_in_flight, workflow_of, workflow_stats
from durable.listings.access import actor_of, admit, is_limited, is_offered, seen_of, startable, visible_runs
from durable.listings.listing import Page
from durable.listings.problems import ProblemError
from durable.listings.shapes import data_of
from durable.listings.work import Cause, Workflow, WorkflowList, WorkflowStats
from durable.operations.audit import acting_as
from durable.operations.causes import MAX_NOTE, note


class WorkflowsView(View):
    about = "surroundings"

    @described(operation_id="list_workflows", responses=serializer_of(WorkflowList))
    def get(self, request: Request) -> Response:
        """Return all workflows that this process knows and that may be started over REST, by name.

        Defaults of their parameters need `durable.view_payload`.
        """
        found = [each for each in registry.all() if isinstance(each, definitions.Workflow) and is_offered(each.name)]
        seen = seen_of(request)
        shown = [code_of(each, may_see_payloads=seen.payloads) for each in found]
        return Response(data_of(WorkflowList, Page(results=shown), seen))


class WorkflowView(View):
    about = "surroundings"

    @described(operation_id="get_workflow", responses=serializer_of(Workflow))
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow, with the parameters of its start. Their defaults need `durable.view_payload`."""
        try:
            workflow = startable(name)
        except ProblemError as error:
            raise ProblemError("not-found", 404, error.problem.detail) from None
        seen = seen_of(request)
        return Response(data_of(Workflow, code_of(workflow, may_see_payloads=seen.payloads), seen))


class WorkflowStatsView(View):
    about = "surroundings"
    is_list = True

    @described(operation_id="get_workflow_stats", responses=serializer_of(WorkflowStats))
    def get(self, request: Request, name: str) -> Response:
        """Return the workflow in numbers.

        They say how long its runs and their steps took, where open runs stand, its hold with held starts, and its
        builds. A workflow that cannot be started over REST, or of which only runs are left, has numbers if you see a
        run of it.
        """
        seen, found = seen_of(request), workflow_of(name)
        definition = found.definition
        is_startable = isinstance(definition, definitions.Workflow) and any(map(is_offered, found.names))
        if not is_startable and not visible_runs(request).filter(workflow__in=found.names).exists():
            detail = f'There is no workflow "{name}": it cannot be started over REST, and no run of it was found.'
            raise ProblemError("not-found", 404, detail)
        builds = builds_in_flight(worker_overview(seen.within), conf.QUEUE if definition is None else definition.queue)
        numbers = SimpleNamespace(
            name=found.name,
            other_names=found.other_names,
            stats=workflow_stats(found.names, seen.within),
            hold=find_hold(HoldKind.WORKFLOW, found.name),
            held_starts=added(count_held_starts(found.names, seen.within).values(), HELD_CAP),
            builds=[SimpleNamespace(build=build, workers=number) for build, number in builds],
        )
        return Response(data_of(WorkflowStats, numbers, seen))


class NoteForm(Form):
    """A note on a cause."""

    note = Text(allow_blank=True, max_length=MAX_NOTE, help_text="For other operators; empty for none.")


class NoteView(View):
    about = "runs"

    @described(operation_id="note_cause", request=NoteForm, responses=serializer_of(Cause))
    def post(self, request: Request, cause: str) -> Response:
        """Tell other operators something about a cause, such as who looks at it. Needs `durable.operate_run`.

        It takes the place of the note before; an empty one deletes it. 404 for a user who may see some runs only.
        """
        admit(request, "note", "")
        given = self.form(NoteForm, request)
        if is_limited():
            raise ProblemError("not-found", 404, "A note is for users who may see all runs.")
        try:
            with acting_as(actor_of(request)):
                note(cause, given["note"])
        except ValueError as error:
            raise ProblemError("not-found", 404, sentence(error)) from None
        seen = seen_of(request)
        return Response(data_of(Cause, find_cause(cause, seen.now), seen))


class AnywhereView(View):
    """Every URL below the interface's prefix that is not an endpoint."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request, path: str) -> Response:
        """Return a problem document, not an HTML page."""
        raise ProblemError("not-found", 404, "There is nothing at this address. An id in it has to be percent-encoded.")

    post = get
