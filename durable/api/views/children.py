"""The children of a run."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import is_limited, visible_run, visible_runs
from durable.api.schema import described
from durable.api.serializers.children import ChildListQuery, ChildPageSerializer, ChildSerializer
from durable.api.views.base import View
from durable.inspection.family import ChildCursor, list_children
from durable.inspection.pagination import cursor_of, key_of


class ChildrenView(View):
    """The children of one run."""

    about = "runs"

    @described(operation_id="list_children", parameters=[ChildListQuery], responses=ChildPageSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the runs that the code of this one has started as its children, in the order of their starts."""
        query = ChildListQuery.read(request.query_params)
        key = key_of(query.get("cursor"), int, str)
        page = list_children(
            visible_run(request, run_id).id,
            states=query.get("state", ()),
            group=query.get("group"),
            after=None if key is None else ChildCursor(*key),
            limit=query["limit"],
            within=visible_runs(request) if is_limited() else None,
        )
        rows: Any = page.rows  # many=True takes several
        context = self.context_for(request, [each.run for each in page.rows])
        after = None if page.next_key is None else cursor_of(*page.next_key)
        return Response({"results": ChildSerializer(rows, many=True, context=context).data, "next_cursor": after})
