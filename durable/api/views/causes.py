"""The causes of failed runs."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import is_limited, may, visible_runs
from durable.api.schema import described
from durable.api.serializers.causes import CauseListSerializer, CauseSerializer
from durable.api.views.base import View
from durable.inspection import list_causes

__all__ = ["CausesView"]


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
