"""Limits: what is held and who waits, and the verbs that set a number."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import is_limited, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.limits import LimitListSerializer, LimitSerializer
from durable.api.views.base import View
from durable.inspection.limits import LimitSummary, list_limits
from durable.models.run import RunQuerySet


class LimitsView(View):
    """The limits."""

    about = "surroundings"

    @described(operation_id="list_limits", responses=LimitListSerializer)
    def get(self, request: Request) -> Response:
        """Return the limits: how many slots are held of each key, how many runs wait, and since when."""
        return Response(LimitListSerializer({"results": list_limits(within=_within(request))}).data)


class LimitView(View):
    """One limit."""

    about = "surroundings"

    @described(operation_id="get_limit", responses=LimitSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return a limit: how many slots are held of each key, how many runs wait, and since when."""
        return Response(LimitSerializer(found_limit(request, name)).data)


def _within(request: Request) -> RunQuerySet | None:
    """Return the runs that the user may see, None for all."""
    return visible_runs(request) if is_limited() else None


def found_limit(request: Request, name: str) -> LimitSummary:
    found = list_limits(name, _within(request))
    if not found:
        raise ProblemError("not-found", 404, f'There is no limit "{name[:200]}".')
    return found[0]
