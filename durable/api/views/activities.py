"""Running steps over REST."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import is_limited, may, visible_run, visible_runs
from durable.api.paging import PageQuery
from durable.api.schema import described
from durable.api.serializers.activities import ActivityListSerializer, ActivitySerializer
from durable.api.views.base import View
from durable.inspection import activities_of, list_activities
from durable.inspection.activities import saved_by


class ActivitiesView(View):
    """The steps that run now."""

    about = "runs"

    @described(operation_id="list_running_steps", parameters=[PageQuery], responses=ActivityListSerializer)
    def get(self, request: Request) -> Response:
        """Return the steps that have run for more than a second, the oldest first."""
        query = PageQuery.read(request.query_params)
        within = visible_runs(request) if is_limited() else None
        page = list_activities(timezone.now(), cursor=query.get("cursor"), limit=query["limit"], within=within)
        steps: Any = page.steps
        return Response({"results": ActivitySerializer(steps, many=True).data, "next_cursor": page.next_cursor})


class ActivitiesOfRunView(View):
    """The steps of one run that run now."""

    about = "runs"

    @described(operation_id="list_running_steps_of_run", responses=ActivityListSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return those that have run for more than a second, the oldest first; at most 200."""
        run = visible_run(request, run_id)
        steps: Any = activities_of(run, timezone.now())
        saved = saved_by(run, [each.location for each in steps]) if may(request, "view_payload") else {}
        shown = ActivitySerializer(steps, many=True, context={"saved": saved}).data
        return Response({"results": shown, "next_cursor": None})
