"""The shapes of runs, and the parameters of their list."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from durable.api.long_poll import MAX_WAIT
from durable.api.serializers.fields import Moment, Number, PageQuery, Query, QueryFlag, TagWords, Text, Words
from durable.core.errors import ErrorInfo
from durable.core.mistakes import has_stopped
from durable.core.places import Place
from durable.core.records import RunState
from durable.inspection import (
    RunOrder,
    awaited_queues,
    explain,
    explain_fully,
    is_undone,
    key_of,
    limits_of,
    payload,
    possible_verbs,
    rank_data,
    redacted,
)
from durable.inspection.family import count_children, family_data, list_parents
from durable.inspection.progress import open_keys_of_long
from durable.inspection.run_facts import tags_data
from durable.inspection.schedules import tick_data, tick_of
from durable.models import Run
from durable.operations.audit import revision

STATES = [state.value for state in RunState]
SORTS = [order.value for order in RunOrder if order is not RunOrder.BY_ID]
_EXPANDABLE = ("input", "output")


def error_of(run: Run, error: ErrorInfo | None, *, may_see_payloads: bool) -> dict[str, Any] | None:
    """Return the part of an error that the user may see: its traceback is a payload."""
    if error is None:
        return None
    return {
        "type": error.type,
        "message": str(redacted(run.workflow, "error", error.message)),
        "traceback": str(redacted(run.workflow, "traceback", error.traceback)) if may_see_payloads else None,
    }


@extend_schema_serializer(component_name="Error")
class ErrorSerializer(serializers.Serializer[Any]):
    """An error: the name of its class and its text."""

    type = serializers.CharField()
    message = serializers.CharField()
    traceback = serializers.CharField(allow_null=True, help_text="Null without the permission to see payloads.")


@extend_schema_serializer(component_name="Explanation")
class ExplanationSerializer(serializers.Serializer[Any]):
    """An explanation: what the run does or waits for, and what an operator can do about it."""

    headline = serializers.CharField()
    detail = serializers.CharField()
    needs_attention = serializers.BooleanField()
    remedies = serializers.ListField(child=serializers.CharField(), help_text="Actions, the likeliest first.")
    location = serializers.CharField(help_text="The entry that it is about; empty for none.")
    withheld = serializers.ListField(
        child=serializers.CharField(), help_text="Actions that are possible and would lead to the same end again."
    )
    command = serializers.CharField(help_text="A shell command that tells more; empty for none.")


@extend_schema_serializer(component_name="RunReference")
class RunReferenceSerializer(serializers.Serializer[Any]):
    """A run's id, and its state after the action."""

    id = serializers.CharField()
    workflow = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)


@extend_schema_serializer(component_name="Run")
class RunSerializer(serializers.Serializer[Run]):
    """A run. All times are in UTC."""

    id = serializers.CharField()
    workflow = serializers.CharField()
    queue = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    is_mistake = serializers.SerializerMethodField(
        help_text="A mistake in the workflow's code has stopped it: nothing was undone, and it can go on once the code is fixed."
    )
    is_undone = serializers.SerializerMethodField(
        help_text="It has failed or was cancelled, and its steps were undone."
    )
    explanation = serializers.SerializerMethodField()
    waiting_for = serializers.SerializerMethodField(
        help_text="The queues of which it waits for a message, [] for any; null if it waits for none."
    )
    wake_at = Moment(allow_null=True, help_text="When it goes on by itself.")
    error = serializers.SerializerMethodField()
    worker = serializers.CharField(help_text="The process that passes it now; empty for none.")
    crashes = serializers.IntegerField(help_text="How many workers died in a row while they passed it.")
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    parent = serializers.SerializerMethodField(  # type: ignore[assignment]  # DRF removes fields from the class
        help_text="The run that started it."
    )
    replay_of = serializers.SerializerMethodField(help_text="The run that it restarts or replays.")
    actions = serializers.SerializerMethodField(help_text="The actions that its state allows.")
    tags = serializers.SerializerMethodField(
        help_text="The values of its tags by name; null for one of which only the hash is stored."
    )
    revision = serializers.SerializerMethodField(
        help_text="Give it back with an action that must not hit a newer state."
    )

    @extend_schema_field(ExplanationSerializer)
    def get_explanation(self, run: Run) -> Any:
        """Return the explanation from the row alone."""
        running = self.context.get("running", {}).get(run.id, ())
        paused = self.context.get("paused", {}).get(run.queue)
        place = self.context.get("places", {}).get(run.id, "")
        within = self.context["within"]
        return asdict(explain(run, timezone.now(), running=running, paused=paused, within=within, place=place))

    @extend_schema_field(serializers.ListField(child=serializers.CharField(), allow_null=True))
    def get_waiting_for(self, run: Run) -> list[str] | None:
        """Return the names that the workflow gave."""
        return awaited_queues(run)

    def get_is_mistake(self, run: Run) -> bool:
        """Return it from the row."""
        return has_stopped(run.summary)

    def get_is_undone(self, run: Run) -> bool:
        """Return it from the row."""
        return is_undone(run)

    @extend_schema_field(ErrorSerializer(allow_null=True))
    def get_error(self, run: Run) -> Any:
        """Return why the run failed, or is being compensated."""
        return error_of(run, run.error, may_see_payloads=self.context["may_see_payloads"])

    def get_parent(self, run: Run) -> str | None:
        """Return the parent's id; None also if the user may not see that run."""
        return run.parent_id if run.parent_id in self.context["existing"] else None

    def get_replay_of(self, run: Run) -> str | None:
        """Return the original's id; None also if the user may not see that run."""
        return run.replay_of_id if run.replay_of_id in self.context["existing"] else None

    def get_actions(self, run: Run) -> list[str]:
        """Return the actions for display; the action itself decides."""
        return list(possible_verbs(run))

    @extend_schema_field(serializers.DictField(child=serializers.CharField(allow_null=True)))
    def get_tags(self, run: Run) -> Any:
        """Return what was read for all runs of the answer."""
        return tags_data(self.context["tags"][run.id])

    def get_revision(self, run: Run) -> str:
        """Return the revision for `acting_as(expected=)`."""
        return revision(run)


def _payload(run: Run, field: str, text: str | None) -> Any:
    return payload(run.workflow, field, text, Place(run.id, field))


@extend_schema_serializer(component_name="GroupCounts")
class GroupCountsSerializer(serializers.Serializer[Any]):
    """The children of a group by state."""

    group = serializers.CharField(allow_null=True, help_text="Its location; null for children that belong to none.")
    states = serializers.DictField(child=serializers.IntegerField())


@extend_schema_serializer(component_name="ChildCounts")
class ChildCountsSerializer(serializers.Serializer[Any]):
    """The number of a run's children, by state, and by group and state. With `is_capped` there are more."""

    total = serializers.IntegerField()
    is_capped = serializers.BooleanField()
    states = serializers.DictField(child=serializers.IntegerField())
    groups = GroupCountsSerializer(many=True)


@extend_schema_serializer(component_name="Scheduled")
class ScheduledSerializer(serializers.Serializer[Any]):
    """A moment of a schedule."""

    name = serializers.CharField()
    moment = Moment()
    kind = serializers.CharField(help_text="tick, catch_up, run_now or backfill.")


@extend_schema_serializer(component_name="RunDetail")
class RunDetailSerializer(RunSerializer):
    """A run, with the requested expansions."""

    deadline = serializers.SerializerMethodField(help_text="When it fails if it has not ended. Null for none.")
    work_limit = serializers.SerializerMethodField(
        help_text="For how many seconds workers may work on it, its waits not counted. Null for no limit."
    )
    worked = serializers.SerializerMethodField(
        help_text="For how many seconds its ended passes have worked on it. Null without a limit."
    )
    key = serializers.SerializerMethodField(
        help_text="With which it was started: no other open run of its workflow has it. Null without one."
    )
    priority = serializers.SerializerMethodField(
        help_text="As the start gave it: a name or a length. Null without one."
    )
    head_start = serializers.SerializerMethodField(
        help_text="How many seconds longer than it has waited it counts as waiting. Null without a priority."
    )
    share = serializers.SerializerMethodField(
        help_text="Of its queue: runs of different shares take turns. Null without one."
    )
    weight = serializers.SerializerMethodField(help_text="How often such runs have a turn. Null without a share.")
    parents = serializers.SerializerMethodField(
        help_text="The chain of its parents, the root first; it begins below the first one that you may not see."
    )
    children = serializers.SerializerMethodField(
        help_text="The children that you may see, by state and group; the first 10,000 are counted."
    )
    schedule = serializers.SerializerMethodField(help_text="The schedule that has started it, and the moment; or null.")
    input = serializers.SerializerMethodField(help_text="With `expand=input`: its `args` and `kwargs`. Else null.")
    output = serializers.SerializerMethodField(help_text="With `expand=output`: what the workflow returned. Else null.")

    @extend_schema_field(ExplanationSerializer)
    def get_explanation(self, run: Run) -> Any:
        """Return the explanation from all available data."""
        within = self.context["within"]
        children = None if within is None or run.state != RunState.COMPLETED else count_children(run.id, within)
        return asdict(explain_fully(run, timezone.now(), open_keys_of_long(run), children, within=within))

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_deadline(self, run: Run) -> Any:
        """Return it from the run's limits."""
        limits = limits_of(run)
        return None if limits is None or limits.deadline is None else Moment().to_representation(limits.deadline)

    def get_work_limit(self, run: Run) -> float | None:
        """Return it from the run's limits."""
        limits = limits_of(run)
        return None if limits is None else limits.work_limit

    def get_worked(self, run: Run) -> float | None:
        """Return it from the run's limits."""
        limits = limits_of(run)
        return None if limits is None or limits.work_limit is None else limits.worked

    def get_key(self, run: Run) -> str | None:
        """Return the text of the run's key."""
        key = key_of(run)
        return None if key is None else key.key

    def get_priority(self, run: Run) -> str | None:
        """Return it from the run's rank."""
        priority: str | None = rank_data(run)["priority"]
        return priority

    def get_head_start(self, run: Run) -> int | None:
        """Return it from the run's rank."""
        head_start: int | None = rank_data(run)["head_start"]
        return head_start

    def get_share(self, run: Run) -> str | None:
        """Return it from the run's rank."""
        share: str | None = rank_data(run)["share"]
        return share

    def get_weight(self, run: Run) -> float | None:
        """Return it from the run's rank."""
        weight: float | None = rank_data(run)["weight"]
        return weight

    @extend_schema_field(RunReferenceSerializer(many=True))
    def get_parents(self, run: Run) -> Any:
        """Return the parents."""
        return [
            {"id": each.id, "workflow": each.workflow, "state": each.state}
            for each in list_parents(run, self.context["within"])
        ]

    @extend_schema_field(ChildCountsSerializer)
    def get_children(self, run: Run) -> Any:
        """Return the numbers."""
        return family_data(count_children(run.id, self.context["within"]))

    @extend_schema_field(ScheduledSerializer(allow_null=True))
    def get_schedule(self, run: Run) -> Any:
        """Return the schedule's name, and which of its moments."""
        tick = tick_of(run.id)
        return None if tick is None else {**(tick_data(tick) or {}), "moment": Moment().to_representation(tick.moment)}

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_input(self, run: Run) -> Any:
        """Return the input if the context says that it was requested."""
        return _payload(run, "input", run.input) if "input" in self.context["expand"] else None

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_output(self, run: Run) -> Any:
        """Return the output if the context says that it was requested."""
        return _payload(run, "output", run.output) if "output" in self.context["expand"] else None


@extend_schema_serializer(component_name="RunPage")
class RunPageSerializer(serializers.Serializer[Any]):
    """A page of runs. More may follow at `next_cursor` even if this page is short."""

    results = RunSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)
    looked_through = serializers.IntegerField(
        allow_null=True,
        help_text="The page ends because so many runs were looked through for it: runs that match may follow at "
        "`next_cursor`. Null for any other page.",
    )


class RunListQuery(PageQuery):
    """The runs to list; every given condition has to hold."""

    state = Words(child=serializers.ChoiceField(choices=STATES), required=False)
    workflow = Text(required=False, max_length=200)
    queue = Text(required=False, max_length=200)
    created_from = Moment(required=False, help_text="Included.")
    created_until = Moment(required=False, help_text="Excluded.")
    finished_from = Moment(required=False, help_text="Included.")
    finished_until = Moment(required=False, help_text="Excluded.")
    id_prefix = Text(required=False, max_length=200)
    error = Text(required=False, max_length=200, help_text="Part of the type or the message of its error.")
    waiting_queue = Text(
        required=False, max_length=128, help_text="Runs that wait for a message of this queue, or of any."
    )
    worker = Text(
        required=False,
        max_length=300,
        help_text="Runs that this worker has, and runs that are failed since it had them.",
    )
    undone = QueryFlag(required=False, default=False, help_text="Runs whose end has undone their steps.")
    stuck = QueryFlag(required=False, default=False, help_text="Failed runs whose compensation has stopped.")
    diverged = QueryFlag(
        required=False,
        default=False,
        help_text="Runs that the workers' code does not fit: tried again for a while, or failed because of that.",
    )
    attention = QueryFlag(required=False, default=False, help_text="Runs that do not go on well without a person.")
    children = QueryFlag(
        required=False,
        default=False,
        help_text="Children too. Without it a list by state, workflow, queue, time, error or waiting queue has roots alone; "
        "one by id, cause, place or worker, and one of runs that need attention, has children in any case.",
    )
    alerts = QueryFlag(
        required=False,
        default=False,
        help_text="The runs that send alerts and do bulks too. Without it a list by state, queue, time, error or waiting "
        "queue leaves them out, unless it is of failed runs alone. One by workflow, id, cause, "
        "place or worker, and one of runs that need attention, has them in any case.",
    )
    sort = serializers.ChoiceField(
        required=False,
        choices=SORTS,
        default=RunOrder.NEWEST.value,
        help_text="The order; a minus sign for the latest first. By `finished_at` the list has ended runs alone, by "
        "`wake_at` runs that go on by themselves. With `id_prefix` the list is by id.",
    )
    tag = TagWords(
        required=False,
        help_text="`name=value`: runs that have this tag. Given several times, runs that have all of them.",
    )
    cause = Text(
        required=False, max_length=16, help_text="The fingerprint of a cause: runs that are failed because of it."
    )
    place = Text(
        required=False, max_length=1024, help_text="The place of a cause: runs that are failed because of one."
    )


class RunQuery(Query):
    """The expansions of a run."""

    expand = Text(required=False, help_text="`input`, `output`, or both, separated by a comma.")

    def validate_expand(self, value: str) -> list[str]:
        """Return the names. Raises ValidationError for unknown ones."""
        names = value.split(",")
        if unknown := [name for name in names if name not in _EXPANDABLE]:
            raise ValidationError(f"{unknown[0]!r} cannot be expanded; {' and '.join(_EXPANDABLE)} can.")
        return names


class ResultQuery(Query):
    """The time to wait."""

    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


@extend_schema_serializer(component_name="Result")
class ResultSerializer(serializers.Serializer[Any]):
    """The result of a run. If the run has not ended, ask again."""

    id = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    has_ended = serializers.BooleanField()
    output = serializers.JSONField(allow_null=True)
    error = ErrorSerializer(allow_null=True)
