"""Bulks: one verb on many runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import actor_of, admit, existing, is_limited, visible_run
from durable.api.idempotent import Done, answered
from durable.api.list_views import seen_of
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.bulks import BulkForm, BulkPlanForm
from durable.api.serializers.shapes import serializer_of
from durable.api.views.base import View
from durable.core.errors import RunNotFoundError
from durable.inspection.bulks import find_bulk, refusals, refusals_of
from durable.inspection.counting import Count
from durable.inspection.database import reading
from durable.inspection.family import FailedChildren
from durable.inspection.selection import Chosen, Filtered
from durable.listings.operators import Bulk, BulkPlan, bulk_data
from durable.listings.runs import criteria_of
from durable.listings.shapes import data_of
from durable.operations import bulk
from durable.operations.audit import PERMISSIONS, acting_as
from durable.operations.eligibility import starts_of_bulk


class BulksView(View):
    """All bulks."""

    about = "actions"

    @described(
        operation_id="start_bulk", request=BulkForm, responses={200: serializer_of(Bulk), 202: serializer_of(Bulk)}
    )
    def post(self, request: Request) -> HttpResponse:
        """Apply a verb to many runs: at once (200), or by a run in the background (202).

        More than 100 runs, a filter, a canary or a rate are done in the background. Needs the permission of the verb.
        Where a user may see some runs only, the runs have to be given by ids.
        """
        given = self.form(BulkForm, request)
        admit(request, given["verb"], "")
        selection = _selection(request, given)
        _check_id(request, given.get("id"))
        canary = bulk.Canary(**given["canary"]) if "canary" in given else None
        options = {name: given[name] for name in bulk.BULK_OPTIONS.get(given["verb"], ()) if given[name]}

        def ordered() -> Done:
            try:
                report = bulk.apply(
                    given["verb"],
                    selection,
                    as_id=given.get("id"),
                    expected=given.get("expected"),
                    canary=canary,
                    rate=given.get("rate"),
                    **options,
                )
            except ValueError as error:  # a grave verb on all runs
                raise ProblemError("refused", 409, f"{error}.") from error
            found = find_bulk(report.bulk_id)
            assert found is not None  # it was written above
            if report.run_id is not None:
                return Done(data=bulk_data(found, [], seen_of(request)), status=202)
            # From the report: inside the transaction of an idempotency key the log gets refusals at its end.
            refused = refusals_of((each.outcome, each.run_id, each.detail) for each in report.refused)
            done, left = Count(number=report.done), Count(number=len(report.refused))
            return Done(data=bulk_data(replace(found, done=done, refused=left), refused, seen_of(request)))

        with acting_as(actor_of(request), reason=given["reason"]):
            return answered(request, ordered)


class BulkPlanView(View):
    """The plan of a bulk."""

    about = "actions"

    def permissions_of(self, method: str | None) -> tuple[str, ...]:
        """Return the permission to see runs: the POST reads."""
        return self.reads_with

    @described(operation_id="plan_bulk", request=BulkPlanForm, responses=serializer_of(BulkPlan))
    def post(self, request: Request) -> HttpResponse:
        """Return how many runs a verb would act on, and how many children their replays start again. Nothing is done.

        Needs `durable.view_run`, and the permission of the verb. Where a user may see some runs only, the runs have to
        be given by ids. At most 10,000 runs are counted. For a replay at most 500 are examined, and 20 of those with
        children: `is_partial` says so.
        """
        given = self.form(BulkPlanForm, request)
        verb = given["verb"]
        self.require(request, PERMISSIONS[verb], "Planning this bulk")

        def planned() -> Done:
            with reading():
                selection = _selection(request, given)
                chosen = Chosen(tuple(selection)) if isinstance(selection, list) else selection
                eligible = bulk.eligible(verb, chosen)
                starts = starts_of_bulk(verb, chosen, eligible)
            plan = SimpleNamespace(eligible=eligible, starts=starts)
            return Done(data=data_of(BulkPlan, plan, seen_of(request)))

        return answered(request, planned)


class BulkView(View):
    """One bulk."""

    about = "actions"

    @described(operation_id="get_bulk", responses=serializer_of(Bulk))
    def get(self, request: Request, bulk_id: str) -> Response:
        """Return how far the bulk is, which runs it was refused for, and how many have failed again.

        Where a user may see some runs only, the bulk has to be the user's own.
        """
        found = find_bulk(bulk_id)
        if found is None or (is_limited() and found.actor_id != request.user.pk):
            raise ProblemError("not-found", 404, f'There is no bulk "{bulk_id}".')
        return Response(bulk_data(found, refusals(found.id), seen_of(request)))


def _check_id(request: Request, bulk_id: str | None) -> None:
    """Raise ProblemError for the id of a bulk that the user may not see: to order it again would show it."""
    found = find_bulk(bulk_id) if bulk_id is not None and is_limited() else None
    if found is not None and found.actor_id != request.user.pk:
        raise ProblemError("id-taken", 409, f'The id "{bulk_id}" is taken; choose another id.')


def _selection(request: Request, given: dict[str, Any]) -> Any:
    """Return the runs. Raises RunNotFoundError for one that the user may not see."""
    if "ids" not in given:
        if is_limited():
            detail = "You may see some runs only, so give the runs of a bulk by their ids."
            raise ProblemError("permission-denied", 403, detail)
        if "children_of" in given:
            return FailedChildren(visible_run(request, given["children_of"]).id, given.get("group"))
        return Filtered(criteria_of(given["filter"]))
    seen = existing(request, given["ids"])
    for run_id in given["ids"]:
        if run_id not in seen:
            raise RunNotFoundError(run_id)
    return given["ids"]
