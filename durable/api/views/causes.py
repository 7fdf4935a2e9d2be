"""The causes of failed runs."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import actor_of, admit, is_limited, may, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.causes import CauseListSerializer, CauseSerializer, NoteForm
from durable.api.views.base import View
from durable.inspection import find_cause, list_causes
from durable.inspection.humanize import sentence
from durable.operations.audit import acting_as
from durable.operations.causes import note


class CausesView(View):
    """The causes of failed runs."""

    about = "runs"

    @described(operation_id="list_causes", responses=CauseListSerializer)
    def get(self, request: Request) -> Response:
        """Return the causes of failed runs, muted ones too, the one with the newest failure first."""
        within = visible_runs(request) if is_limited() else None
        found: Any = list_causes(runtime.current().now(), within=within)
        context = {"may_see_payloads": may(request, "view_payload")}
        return Response({"results": CauseSerializer(found, many=True, context=context).data})


class NoteView(View):
    """A note on a cause."""

    about = "runs"

    @described(operation_id="note_cause", request=NoteForm, responses=CauseSerializer)
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
        context = {"may_see_payloads": may(request, "view_payload")}
        return Response(CauseSerializer(find_cause(cause, runtime.current().now()), context=context).data)
