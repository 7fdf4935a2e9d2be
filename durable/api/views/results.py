"""The result of a run, after a wait if necessary."""

from __future__ import annotations

from types import SimpleNamespace

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import visible_run
from durable.api.list_views import seen_of
from durable.api.long_poll import wait_for
from durable.api.schema import described
from durable.api.serializers.runs import ResultQuery
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.core.places import Place
from durable.core.records import ENDED
from durable.inspection.payloads import payload
from durable.listings.runs import Result, error_of
from durable.listings.shapes import data_of
from durable.models import Run


class ResultView(View):
    """A run's end."""

    about = "runs"
    reads_with = ("view_run", "view_payload")
    waits = True

    @described(operation_id="get_result", parameters=[ResultQuery], responses=serializer_of(Result))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run's output or error, as soon as it has ended, after `wait` seconds at most.

        A server that has many waiting requests already, or has one thread, answers at once.
        """
        wait = ResultQuery.read(request.query_params)["wait"]

        def ended() -> Run | None:
            run = visible_run(request, run_id)
            return run if run.state in ENDED else None

        run = wait_for(request, ended, wait) or visible_run(request, run_id)
        result = SimpleNamespace(
            id=run.id,
            state=run.state,
            has_ended=run.state in ENDED,
            output=payload(run.workflow, "output", run.output, Place(run.id, "output")),
            error=error_of(run, run.error, payloads=True),
        )
        return Response(data_of(Result, result, seen_of(request)))
