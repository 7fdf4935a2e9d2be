"""Pausing and resuming queues, and holding and releasing the new starts of workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, is_limited
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.holds import HoldForm, HoldSerializer, ReleaseSerializer
from durable.api.views.base import View
from durable.operations import holds
from durable.operations.audit import acting_as


class _HoldingView(View):
    about = "surroundings"
    action: ClassVar[str]

    def perform(self, request: Request, name: str, call: Callable[[str], Any]) -> Any:
        """Check the permission, validate, and call the verb. Raises ProblemError for an unknown name."""
        admit(request, self.action, "")
        given = self.form(HoldForm, request)
        try:
            with acting_as(actor_of(request), reason=given["reason"]):
                return call(name)
        except ValueError as error:
            raise ProblemError("not-found", 404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


class PauseQueueView(_HoldingView):
    """Pause a queue."""

    action = "pause_queue"

    @described(operation_id="pause_queue", request=HoldForm, responses=HoldSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let no worker take runs of this queue until it is resumed. Needs `durable.pause_queue`.

        Passes that are under way go on to their next park. 409 if the queue is paused already.
        """
        return Response(HoldSerializer(self.perform(request, name, holds.pause_queue)).data)


class ResumeQueueView(_HoldingView):
    """Resume a queue."""

    action = "resume_queue"

    @described(operation_id="resume_queue", request=HoldForm, responses=ReleaseSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let workers take runs of this queue again, at once. Needs `durable.pause_queue`.

        409 if the queue is not paused.
        """
        self.perform(request, name, holds.resume_queue)
        return Response(ReleaseSerializer({"name": name, "resumed": 0}).data)


class HoldView(_HoldingView):
    """Hold the new starts of a workflow."""

    action = "hold_starts"

    @described(operation_id="hold_workflow", request=HoldForm, responses=HoldSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let new runs of this workflow wait, paused, until it is released. Needs `durable.hold_workflow`.

        Starts are accepted, and runs that exist go on. 409 if the workflow is held already.
        """
        return Response(HoldSerializer(self.perform(request, name, holds.hold_starts)).data)


class ReleaseView(_HoldingView):
    """Release a workflow."""

    action = "release_starts"

    @described(operation_id="release_workflow", request=HoldForm, responses=ReleaseSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Resume the runs that the hold has paused, and let new ones start. Needs `durable.hold_workflow`.

        409 if the workflow is not held.
        """
        resumed = self.perform(request, name, holds.release_starts)
        shown = None if is_limited() else resumed  # of everybody
        return Response(ReleaseSerializer({"name": name, "resumed": shown}).data)
