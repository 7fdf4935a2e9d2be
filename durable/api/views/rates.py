"""Rates of limits: what is reserved and what is closed, and the verbs that set, close and open."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import is_limited, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.rates import (
    RateListSerializer,
    RateSerializer,
)
from durable.api.views.base import View
from durable.inspection.limits import RateSummary, list_rates
from durable.models.run import RunQuerySet


class RatesView(View):
    """The rates."""

    about = "surroundings"

    @described(operation_id="list_rates", responses=RateListSerializer)
    def get(self, request: Request) -> Response:
        """Return the rates of limits: until when they are reserved, how many attempts wait, and what is closed."""
        found = list_rates(runtime.current().now(), within=_within(request))
        return Response(RateListSerializer({"results": found}).data)


class RateView(View):
    """One rate."""

    about = "surroundings"

    @described(operation_id="get_rate", responses=RateSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return the rate of a limit: until when it is reserved, how many attempts wait, and what is closed."""
        return Response(RateSerializer(found_rate(request, name)).data)


def _within(request: Request) -> RunQuerySet | None:
    """Return the runs that the user may see, None for all."""
    return visible_runs(request) if is_limited() else None


def found_rate(request: Request, name: str) -> RateSummary:
    found = list_rates(runtime.current().now(), name, _within(request))
    if not found:
        raise ProblemError("not-found", 404, f'There is no limit "{name[:200]}" with a rate.')
    return found[0]
