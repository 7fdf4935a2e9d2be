"""The order of a bulk, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.serializers.actions import Delay
from durable.api.serializers.fields import Flag, Form, Id, Items, Moment, Number, TagWords, Text
from durable.core.ids import MAX_REASON
from durable.core.records import RunState
from durable.inspection import RunCriteria
from durable.inspection.bulks import BulkSummary
from durable.operations.bulk import BULK_OPTIONS, BULK_VERBS
from durable.operations.bulk_starts import BulkStarts
from durable.operations.canary import MAX_FIRST, Canary
from durable.operations.eligibility import Eligibility

_MOST_IDS = 500


@extend_schema_serializer(component_name="BulkFilter")
class BulkFilterForm(Form):
    """The runs of a bulk; every given condition has to hold."""

    state = Items(
        child=serializers.ChoiceField(choices=[each.value for each in RunState]), required=False, max_length=20
    )
    workflow = Text(required=False, max_length=200)
    queue = Text(required=False, max_length=200)
    created_from = Moment(required=False, help_text="Included.")
    created_until = Moment(required=False, help_text="Excluded.")
    id_prefix = Text(required=False, max_length=200)
    error = Text(required=False, max_length=200, help_text="Part of the type or the message of its error.")
    cause = Text(required=False, max_length=16, help_text="The fingerprint of a cause.")
    place = Text(required=False, max_length=1024, help_text="The place of a cause.")
    tag = TagWords(required=False, help_text="`name=value`: tags, all of which a run has.")

    @staticmethod
    def criteria(given: dict[str, Any]) -> RunCriteria:
        """Return the validated values as criteria."""
        rest = {name: value for name, value in given.items() if name not in ("state", "error", "tag")}
        return RunCriteria(
            states=frozenset(given.get("state", ())),
            error_text=given.get("error", ""),
            tags=given.get("tag", ()),
            **rest,
        )


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
        """Return the fields, and a flag for each option of a verb."""
        flags = {
            name: Flag(required=False, default=False, help_text=f"Of {verb}. {does}")
            for verb, options in BULK_OPTIONS.items()
            for name, does in options.items()
        }
        return {**super().get_fields(), **flags}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Raise ValidationError unless the runs are chosen in one way, by options that the verb has."""
        super().validate(attrs)
        for verb, options in BULK_OPTIONS.items():
            for name in options:
                if attrs[name] and attrs["verb"] != verb:
                    raise ValidationError({name: f"This is an option of {verb}."})
        return attrs


class NumberOfSerializer(serializers.Serializer[Any]):
    """A number of runs of one workflow, or in one state."""

    name = serializers.CharField(allow_blank=True)
    number = serializers.IntegerField()


@extend_schema_serializer(component_name="BulkStarts")
class BulkStartsSerializer(serializers.Serializer[BulkStarts]):
    """The children that the replays of a bulk start again, each from where its run failed."""

    looked_at = serializers.IntegerField(help_text="The runs that were examined.")
    parents = serializers.IntegerField(help_text="Those of them that start children again.")
    children = serializers.IntegerField(help_text="How many children these start again, as new runs.")
    is_partial = serializers.BooleanField(help_text="There are or may be more runs, and these may start more.")
    workflows = serializers.SerializerMethodField(help_text="The children by workflow, the most frequent first.")
    note = serializers.CharField(
        allow_blank=True, help_text="The same as a sentence; empty if there is nothing to say."
    )

    @extend_schema_field(NumberOfSerializer(many=True))
    def get_workflows(self, starts: BulkStarts) -> Any:
        """Return the numbers by workflow."""
        return _numbers(starts.workflows)


@extend_schema_serializer(component_name="BulkPlan")
class BulkPlanSerializer(serializers.Serializer[Eligibility]):
    """The runs on which a bulk would act. Context: `starts`."""

    count = serializers.IntegerField(help_text="The runs whose state allows the verb: the `expected` of the bulk.")
    is_capped = serializers.BooleanField(help_text="There are or may be more.")
    by_workflow = serializers.SerializerMethodField(help_text="These runs by workflow, if the workflows are known.")
    left_alone = serializers.SerializerMethodField(
        help_text="The other runs by state; the state of ids that no run has is empty."
    )
    starts = serializers.SerializerMethodField(help_text="Null unless the verb is replay.")

    @extend_schema_field(NumberOfSerializer(many=True))
    def get_by_workflow(self, found: Eligibility) -> Any:
        """Return the numbers by workflow."""
        return _numbers(found.by_workflow)

    @extend_schema_field(NumberOfSerializer(many=True))
    def get_left_alone(self, found: Eligibility) -> Any:
        """Return the numbers by state."""
        return _numbers(found.left_alone)

    @extend_schema_field(BulkStartsSerializer(allow_null=True))
    def get_starts(self, _found: Eligibility) -> Any:
        """Return what is started again."""
        starts = self.context["starts"]
        return None if starts is None else BulkStartsSerializer(starts).data


def _numbers(found: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "number": number} for name, number in found]


class RefusalsSerializer(serializers.Serializer[Any]):
    """The runs that were refused for one reason."""

    outcome = serializers.CharField()
    reason = serializers.CharField()
    number = serializers.IntegerField()
    runs = serializers.ListField(child=serializers.CharField(), help_text="The first ones.")


@extend_schema_serializer(component_name="Bulk")
class BulkSerializer(serializers.Serializer[BulkSummary]):
    """A bulk, and what has come of it so far. Context: `refusals`."""

    id = serializers.CharField()
    verb = serializers.CharField()
    headline = serializers.CharField(help_text="What it does now, as one sentence.")
    run = serializers.SerializerMethodField(help_text="The run that does it in the background, or null.")
    is_over = serializers.BooleanField()
    is_stopped = serializers.SerializerMethodField(help_text="Whether its canary has stopped it: go on, or stop here.")
    total = serializers.IntegerField(allow_null=True, help_text="The runs to be processed, if they were counted.")
    done = serializers.IntegerField(source="done.number")
    refused = serializers.IntegerField(source="refused.number")
    failed_again = serializers.SerializerMethodField(help_text="Null for a verb after which a run does not fail.")
    started_children = serializers.SerializerMethodField(
        help_text="The children that its replays start again, those of the newest 10,000. Null for other verbs."
    )
    refusals = serializers.SerializerMethodField()
    actor = serializers.CharField()
    reason = serializers.CharField()
    began_at = Moment()

    @extend_schema_field({"type": ["string", "null"]})
    def get_run(self, bulk: BulkSummary) -> str | None:
        """Return the run's id."""
        return None if bulk.run is None else bulk.run.id

    @extend_schema_field(serializers.BooleanField())
    def get_is_stopped(self, bulk: BulkSummary) -> bool:
        """Return whether an operator has to decide."""
        return bulk.stopped is not None

    @extend_schema_field({"type": ["integer", "null"]})
    def get_failed_again(self, bulk: BulkSummary) -> int | None:
        """Return the number of runs that are failed again."""
        return None if bulk.again is None else bulk.again.number

    @extend_schema_field({"type": ["integer", "null"]})
    def get_started_children(self, bulk: BulkSummary) -> int | None:
        """Return the number of children that are started again."""
        return None if bulk.started is None else bulk.started.number

    @extend_schema_field(RefusalsSerializer(many=True))
    def get_refusals(self, _bulk: BulkSummary) -> Any:
        """Return the refused runs by reason."""
        return RefusalsSerializer(self.context["refusals"], many=True).data
