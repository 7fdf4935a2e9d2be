"""The causes of failed runs."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, is_limited
from durable.api.list_views import seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.actions import NoteForm
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.inspection.causes import find_cause
from durable.inspection.humanize import sentence
from durable.listings.causes import Cause
from durable.listings.shapes import data_of
from durable.operations.audit import acting_as
from durable.operations.causes import note


class NoteView(View):
    """A note on a cause."""

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
