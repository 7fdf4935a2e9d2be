"""The order of a bulk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.serializers.actions import Delay
from durable.api.serializers.fields import Form, Id, Items, Number, Text
from durable.api.serializers.options import filters_of, option_field
from durable.core.ids import MAX_REASON
from durable.listings.runs import RUN_FILTERS
from durable.operations.bulk import BULK_OPTIONS, BULK_VERBS
from durable.operations.canary import MAX_FIRST, Canary

_MOST_IDS = 500


@extend_schema_serializer(component_name="BulkFilter")
class BulkFilterForm(Form):
    """The runs of a bulk; every given condition has to hold. Children and durable's own runs are among them."""

    def get_fields(self) -> dict[str, Any]:
        """Return the fields: the conditions of the list of runs."""
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
        """Raise ValidationError for a canary that cannot be."""
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
    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, and one for each option of a verb."""
        of_verbs = {
            name: option_field(replace(option, does=f"Of {verb}. {option.does}"), is_required=False)
            for verb, options in BULK_OPTIONS.items()
            for name, option in options.items()
        }
        return {**super().get_fields(), **of_verbs}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Raise ValidationError unless the runs are chosen in one way, by options that the verb has."""
        super().validate(attrs)
        for verb, options in BULK_OPTIONS.items():
            for name, option in options.items():
                if attrs.get(name) and attrs["verb"] != verb:
                    raise ValidationError({name: f"This is an option of {verb}."})
                if option.is_required and attrs["verb"] == verb and name not in attrs:
                    raise ValidationError({name: f"Say this for {verb}."})
        return attrs
