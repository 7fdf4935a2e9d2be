"""Bulks: one verb on many runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View
from durable.api.fields import (
    Delay,
    Form,
    Id,
    Items,
    Number,
    Text,
    audit_reason,
    checked_together,
    filters_of,
    option_field,
    serializer_of,
)
from durable.api.requests import Done, answered
from durable.api.schema import described
from durable.core.errors import RunNotFoundError
from durable.inspection.bulks import find_bulk, refusals, refusals_of
from durable.inspection.children import FailedChildren
from durable.inspection.counting import Count
from durable.inspection.reading import reading
from durable.inspection.selection import Chosen, Filtered
from durable.listings.access import actor_of, admit, existing, is_limited, seen_of, visible_run
from durable.listings.operators import Bulk, BulkPlan, bulk_data
from durable.listings.problems import ProblemError
from durable.listings.runs import RUN_FILTERS, criteria_of
from durable.listings.shapes import data_of
from durable.operations import bulk
from durable.operations.audit import PERMISSIONS, acting_as
from durable.operations.bulk import BULK_OPTIONS, BULK_VERBS
from durable.operations.bulk_decisions import MAX_FIRST, Canary
from durable.operations.eligibility import starts_of_bulk
from durable.operations.verbs import RUN_VERBS

_MOST_IDS = 500


@extend_schema_serializer(component_name="BulkFilter")
class BulkFilterForm(Form):
    """The runs of a bulk; every given condition has to hold. Children and durable's own runs are among them."""

    def get_fields(self) -> dict[str, Any]:
        return filters_of(*RUN_FILTERS, in_body=True)


@extend_schema_serializer(component_name="Canary")
class CanaryForm(Form):
    """The first runs of a bulk, which are tried alone."""

    first = serializers.IntegerField(min_value=1, max_value=MAX_FIRST)
    stop_after = serializers.IntegerField(
        required=False, default=1, min_value=1, max_value=MAX_FIRST, help_text="The failures after which it stops."
    )
    within = Delay(required=False, default=600.0, help_text="How long the bulk waits for these runs.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            Canary(**attrs)
        except ValueError as error:
            raise ValidationError(f"{error}.") from None
        return attrs


class BulkPlanForm(Form):
    """A verb for many runs: those with the `ids`, those that match the `filter`, or the failed children of a run."""

    verb = serializers.ChoiceField(choices=BULK_VERBS)
    ids = Items(child=Id(), required=False, min_length=1, max_length=_MOST_IDS)
    filter = BulkFilterForm(required=False)
    children_of = Id(
        required=False, help_text="Of recover: the failed children of this run, and then the run if it has failed too."
    )
    group = Text(required=False, max_length=1024, help_text="With `children_of`: the children of this group alone.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Raise ValidationError unless the runs are chosen in one way, by options that the verb has."""
        if sum(name in attrs for name in ("ids", "filter", "children_of")) != 1:
            raise ValidationError({"ids": "Give ids, a filter or children_of, and not more than one."})
        if "children_of" in attrs and attrs["verb"] != "recover":
            raise ValidationError({"children_of": "This is for recover."})
        if "group" in attrs and "children_of" not in attrs:
            raise ValidationError({"group": "This goes with children_of."})
        return attrs


class BulkForm(BulkPlanForm):
    """One verb on many runs: those with the `ids`, those that match the `filter`, or the failed children of a run."""

    id = Id(required=False, help_text="Of the bulk. A bulk in the background with this id is not started again.")
    expected = serializers.IntegerField(
        required=False, min_value=0, help_text="Do nothing unless so many of the runs allow the verb."
    )
    canary = CanaryForm(required=False)
    rate = Number(required=False, min_value=0.001, max_value=1_000, help_text="Runs a second, at most.")
    reason = audit_reason()

    def get_fields(self) -> dict[str, Any]:
        of_verbs = {
            name: option_field(replace(option, does=f"Of {verb}. {option.does}"), is_required=False)
            for verb, options in BULK_OPTIONS.items()
            for name, option in options.items()
        }
        return {**super().get_fields(), **of_verbs}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        super().validate(attrs)
        for verb, options in BULK_OPTIONS.items():
            for name, option in options.items():
                if attrs["verb"] != verb and name in attrs and option.is_said(attrs[name]):
                    raise ValidationError({name: f"This is an option of {verb}."})
                if option.is_required and attrs["verb"] == verb and name not in attrs:
                    raise ValidationError({name: f"Say this for {verb}."})
        check = RUN_VERBS[attrs["verb"]].check
        if check is not None:
            checked_together(check, bulk.options_of(attrs["verb"], attrs))
        return attrs


class BulksView(View):
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
        options = bulk.options_of(given["verb"], given)

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
            # From the report: inside an idempotency key's transaction, refusals are logged only at its end.
            refused = refusals_of((each.outcome, each.run_id, each.detail) for each in report.refused)
            done, left = Count(number=report.done), Count(number=len(report.refused))
            return Done(data=bulk_data(replace(found, done=done, refused=left), refused, seen_of(request)))

        with acting_as(actor_of(request), reason=given["reason"]):
            return answered(request, ordered)


class BulkPlanView(View):
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
    """Raise ProblemError for the id of a bulk that the user may not see: ordering it again would reveal it."""
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
