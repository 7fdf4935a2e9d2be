"""Limits: what is held and who waits, and the verbs that set a number."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, is_limited, visible_runs
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.limits import LimitListSerializer, LimitSerializer, SetLimitForm, TakeBackLimitForm
from durable.api.views.base import View
from durable.core.errors import UnknownLimitError
from durable.inspection.slots import LimitSummary, list_limits
from durable.models.run import RunQuerySet
from durable.operations import limits
from durable.operations.audit import acting_as


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
        return Response(LimitSerializer(_found(request, name)).data)


class _SettingView(View):
    about = "surroundings"
    action: ClassVar[str]

    def perform(self, request: Request, name: str) -> Response:
        """Check the permission, validate, and call the verb. Raises ProblemError for an unknown name."""
        admit(request, self.action, "")
        given = self.form(SetLimitForm if self.action == "set_limit" else TakeBackLimitForm, request)
        try:
            with acting_as(actor_of(request), reason=given["reason"]):
                if self.action == "set_limit":
                    limits.set_limit(name, given["at_once"])
                else:
                    limits.take_back_limit(name)
        except UnknownLimitError as error:
            raise ProblemError("not-found", 404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        return Response(LimitSerializer(_found(request, name)).data)


class SetLimitView(_SettingView):
    """Set the number of a limit."""

    action = "set_limit"

    @described(operation_id="set_limit", request=SetLimitForm, responses=LimitSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let a limit allow so many slots of each key, whatever the code says. Needs `durable.change_limit`.

        With a higher number, runs that wait go on within about a second. With a lower one, runs that hold a slot keep
        it.
        """
        return self.perform(request, name)


class TakeBackLimitView(_SettingView):
    """Take back the number of a limit."""

    action = "take_back_limit"

    @described(operation_id="take_back_limit", request=TakeBackLimitForm, responses=LimitSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Let a limit allow the number again that the code says. Needs `durable.change_limit`."""
        return self.perform(request, name)


def _within(request: Request) -> RunQuerySet | None:
    """Return the runs that the user may see, None for all."""
    return visible_runs(request) if is_limited() else None


def _found(request: Request, name: str) -> LimitSummary:
    found = list_limits(name, _within(request))
    if not found:
        raise ProblemError("not-found", 404, f'There is no limit "{name[:200]}".')
    return found[0]
