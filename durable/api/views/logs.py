"""The log of a run."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import visible_run
from durable.api.schema import described
from durable.api.serializers.logs import LogPageSerializer, LogQuery
from durable.api.views.base import View
from durable.inspection.run_logs import read_logs


class LogsView(View):
    """The log of a run."""

    about = "history"
    reads_with: ClassVar[tuple[str, ...]] = ("view_run", "view_payload")

    @described(operation_id="list_logs", parameters=[LogQuery], responses=LogPageSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run's log in the order in which it was written.

        Lines are kept only where the project has switched on `durable.logs.RunLogHandler`, and the newest of each run
        only. Give the greatest `id` as `after` to read what was written since. They need `durable.view_payload`.
        """
        query = LogQuery.read(request.query_params)
        run = visible_run(request, run_id)
        lines = read_logs(
            run, level=query["level"], place=query["place"], after=query["after"], limit=query["limit"] + 1
        )
        page = lines[: query["limit"]]
        return Response(
            LogPageSerializer({"results": page, "next_after": page[-1].id if len(lines) > len(page) else None}).data
        )
