"""The shape of a replay's plan."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Query, QueryFlag, Text


def _texts(help_text: str) -> serializers.ListField:
    return serializers.ListField(child=serializers.CharField(), help_text=help_text)


class PlanQuery(Query):
    """The location."""

    location = Text(max_length=1024)
    with_output = QueryFlag(
        required=False, default=False, help_text="The plan of giving the output of this step by hand."
    )


class ReturnedMessageSerializer(serializers.Serializer[Any]):
    """A message that becomes pending again."""

    id = serializers.CharField()
    queue = serializers.CharField()
    wait = serializers.CharField(help_text="The location of the wait that had received it.")


class StartsAgainSerializer(serializers.Serializer[Any]):
    """Children that are started again, as new runs with new idempotency keys."""

    location = serializers.CharField(
        help_text="The operation that has started them, or a loop around it: of one whose older iterations are pruned, all "
        "children are counted that were ever started in it."
    )
    workflow = serializers.CharField(help_text="The workflow of the children.")
    number = serializers.IntegerField(help_text="How many.")


class PlanCountsSerializer(serializers.Serializer[Any]):
    """The length of each list of a plan."""

    removed = serializers.IntegerField()
    reruns = serializers.IntegerField()
    resends = serializers.IntegerField()
    starts = serializers.IntegerField()
    started_children = serializers.IntegerField(help_text="The sum of the numbers of `starts`.")
    kept = serializers.IntegerField()
    siblings = serializers.IntegerField()
    messages = serializers.IntegerField()
    children = serializers.IntegerField()
    not_compensated = serializers.IntegerField()


@extend_schema_serializer(component_name="ReplayPlan")
class PlanSerializer(serializers.Serializer[Any]):
    """The effects of a replay. Each list has the first 50."""

    run_id = serializers.CharField()
    target = serializers.CharField(help_text="What was asked for.")
    boundary = serializers.CharField(help_text="Where the run would go on.")
    why = _texts("Why the boundary is not the target.")
    removed = _texts("The entries that go.")
    reruns = _texts("The steps among them, which run again when the code comes to them.")
    resends = _texts("The sends among them, which are made again.")
    starts = StartsAgainSerializer(
        many=True,
        help_text="The operations among them that start their children again: what the children before did stays, and is "
        "done again.",
    )
    kept = _texts("The entries that stay.")
    siblings = _texts("The branches beside the boundary whose records stay.")
    messages = ReturnedMessageSerializer(many=True, help_text="The messages that return to the queue.")
    children = _texts("The children that a replay in place cancels: what goes has started them.")
    not_compensated = _texts(
        "The completed steps with a rollback handler, and the children that are compensated with their parent, that go: their "
        "handlers are not run."
    )
    refusals = _texts("What prevents a new run.")
    in_place_refusals = _texts("What prevents a replay in place.")
    notes = _texts("Further notes for the operator.")
    counts = PlanCountsSerializer(help_text="How many there are of each list.")
    hash = serializers.CharField(help_text="To be given to the replay, which refuses a stale one.")
