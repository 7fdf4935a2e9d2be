"""Two runs side by side."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import may, visible_run
from durable.api.list_views import seen_of
from durable.api.schema import described
from durable.api.serializers.history import ComparisonQuery
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.inspection.comparison import compare_runs
from durable.listings.history import Comparison
from durable.listings.shapes import data_of


class ComparisonView(View):
    """A run and another one."""

    about = "history"

    @described(operation_id="compare_runs", parameters=[ComparisonQuery], responses=serializer_of(Comparison))
    def get(self, request: Request, run_id: str) -> Response:
        """Return a page of the places of this run and of another one, for example its replay, with what differs."""
        query = ComparisonQuery.read(request.query_params)
        left, right = visible_run(request, run_id), visible_run(request, query["other"])
        found = compare_runs(left, right, with_payloads=may(request, "view_payload"), start=query["start"])
        return Response(data_of(Comparison, found, seen_of(request)))
