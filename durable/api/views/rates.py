"""Rates of limits: what is reserved and what is closed, and the verbs that set, close and open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import actor_of, admit, is_limited, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.fields import Form
from durable.api.serializers.rates import (
    CloseLimitForm,
    OpenLimitForm,
    RateListSerializer,
    RateSerializer,
    SetRateForm,
    TakeBackRateForm,
)
from durable.api.views.base import View
from durable.core.errors import UnknownLimitError
from durable.inspection.rates import RateSummary, list_rates
from durable.models.run import RunQuerySet
from durable.operations import rates
from durable.operations.audit import acting_as


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
        return Response(RateSerializer(_found(request, name)).data)


class _VerbView(View):
    about = "surroundings"
    action: ClassVar[str]
    form_class: ClassVar[type[Form]]

    def perform(self, request: Request, name: str) -> Response:
        """Check the permission, validate, and call the verb. Raises ProblemError for an unknown name."""
        admit(request, self.action, "")
        given = self.form(self.form_class, request)
        try:
            with acting_as(actor_of(request), reason=given["reason"]):
                self.do(name, given)
        except UnknownLimitError as error:
            raise ProblemError("not-found", 404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        except ValueError as error:
            raise ProblemError("arguments-refused", 422, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        return Response(RateSerializer(_found(request, name)).data)

    def do(self, name: str, given: Mapping[str, Any]) -> None:
        """Call the verb."""
        raise NotImplementedError


class SetRateView(_VerbView):
    """Set the rate of a limit."""

    action = "set_rate"
    form_class = SetRateForm

    @described(operation_id="set_rate", request=SetRateForm, responses=RateSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let a limit have this rate, whatever the code says. Needs `durable.change_limit`.

        The attempts that wait are given new moments, in their order.
        """
        return self.perform(request, name)

    def do(self, name: str, given: Mapping[str, Any]) -> None:
        rates.set_rate(name, given["rate"], given["burst"])


class TakeBackRateView(_VerbView):
    """Take back the rate of a limit."""

    action = "take_back_rate"
    form_class = TakeBackRateForm

    @described(operation_id="take_back_rate", request=TakeBackRateForm, responses=RateSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let a limit have the rate again that the code says. Needs `durable.change_limit`."""
        return self.perform(request, name)

    def do(self, name: str, given: Mapping[str, Any]) -> None:  # as the others
        rates.take_back_rate(name)


class CloseLimitView(_VerbView):
    """Close a limit."""

    action = "close_limit"
    form_class = CloseLimitForm

    @described(operation_id="close_limit", request=CloseLimitForm, responses=RateSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let nothing of a limit's rate begin before a moment. Needs `durable.change_limit`.

        Attempts that have begun go on. A closing replaces the one before.
        """
        return self.perform(request, name)

    def do(self, name: str, given: Mapping[str, Any]) -> None:
        rates.close_limit(name, given["until"], key=given["key"])


class OpenLimitView(_VerbView):
    """Open a limit."""

    action = "open_limit"
    form_class = OpenLimitForm

    @described(operation_id="open_limit", request=OpenLimitForm, responses=RateSerializer)
    def post(self, request: Request, name: str) -> Response:
        """End the closing of a limit: attempts that wait begin at its rate. Needs `durable.change_limit`."""
        return self.perform(request, name)

    def do(self, name: str, given: Mapping[str, Any]) -> None:
        rates.open_limit(name, key=given["key"])


def _within(request: Request) -> RunQuerySet | None:
    """Return the runs that the user may see, None for all."""
    return visible_runs(request) if is_limited() else None


def _found(request: Request, name: str) -> RateSummary:
    found = list_rates(runtime.current().now(), name, _within(request))
    if not found:
        raise ProblemError("not-found", 404, f'There is no limit "{name[:200]}" with a rate.')
    return found[0]
