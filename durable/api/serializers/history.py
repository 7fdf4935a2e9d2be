"""The shapes of histories: entries with their attempts, trees of them, and messages."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import Moment, PageQuery, Query, QueryFlag
from durable.api.serializers.runs import ErrorSerializer
from durable.core.records import EntryKind, EntryStatus, MessageState

_KINDS = [kind.value for kind in EntryKind]
_STATUSES = [status.value for status in EntryStatus]


@extend_schema_serializer(component_name="Entry")
class EntrySerializer(serializers.Serializer[Any]):
    """The record of one operation."""

    location = serializers.CharField()
    kind = serializers.ChoiceField(choices=_KINDS)
    status = serializers.ChoiceField(choices=_STATUSES)
    ordinal = serializers.IntegerField(help_text="The order in which the entries of a run began.")
    attempts = serializers.IntegerField()
    created_at = Moment()
    last_attempt_at = Moment(allow_null=True)
    next_attempt_at = Moment(allow_null=True)
    completed_at = Moment(allow_null=True)
    rollback_completed_at = Moment(allow_null=True)
    error = ErrorSerializer(allow_null=True, help_text="Of the last failed attempt.")
    rollback_error = ErrorSerializer(allow_null=True)
    data = serializers.DictField(  # type: ignore[assignment]  # DRF removes fields from the class
        help_text="What the kind of entry has beside: a sleep its deadline, a loop its iteration."
    )
    payloads = serializers.DictField(
        allow_null=True, help_text="Arguments, outputs and messages, where they were asked for and may be seen."
    )


class AttemptSerializer(serializers.Serializer[Any]):
    """A failed attempt of a step."""

    number = serializers.IntegerField()
    worker = serializers.CharField()
    started_at = Moment()
    finished_at = Moment()
    error = ErrorSerializer()


@extend_schema_serializer(component_name="EntryDetail")
class EntryDetailSerializer(EntrySerializer):
    """An entry with its failed attempts, at most 1,000 and 8 MiB."""

    failed_attempts = AttemptSerializer(many=True)
    saved = serializers.JSONField(
        allow_null=True, help_text="What the step has saved last. Null without the permission to see payloads."
    )


@extend_schema_serializer(component_name="EntryPage")
class EntryPageSerializer(serializers.Serializer[Any]):
    """A page of a history, in the order in which its entries began."""

    results = EntrySerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class EntryQuery(PageQuery):
    """The entries to list, and the columns to include."""

    payloads = QueryFlag(required=False, default=False)


class TreeQuery(Query):
    """The part of the tree to return."""

    start = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=10**9,
        help_text="The position to begin at; without it, where the run is. Above 5,000 entries it counts entries.",
    )
    only_failed = QueryFlag(required=False, default=False, help_text="What has failed or is not completed.")


@extend_schema_serializer(component_name="TreeNode")
class TreeNodeSerializer(serializers.Serializer[Any]):
    """A location in the history: an entry, or a scope such as an iteration or a branch."""

    location = serializers.CharField()
    title = serializers.CharField()
    kind = serializers.CharField(help_text="That of the entry, or iteration, branch or block.")
    status = serializers.CharField(
        help_text="That of the entry; a join or race that raised an error is failed. A scope's is the worst inside it."
    )
    running_since = Moment(
        allow_null=True,
        help_text="Of an attempt or a rollback handler that runs now. A first attempt has no entry yet.",
    )
    is_caught = serializers.BooleanField(help_text="It has failed, and the workflow went on all the same.")
    failed_attempts = serializers.IntegerField(help_text="Of a step; those before a recovery are counted.")
    position = serializers.IntegerField()
    is_winner = serializers.BooleanField(help_text="Of a race's branches.")
    note = serializers.CharField()
    children = serializers.SerializerMethodField()

    @extend_schema_field({"type": "array", "items": {"$ref": "#/components/schemas/DurableTreeNode"}})
    def get_children(self, node: Any) -> Any:
        """Return the nodes below, in order."""
        return [self.to_representation(child) for child in node.children]  # one serializer for all nodes


@extend_schema_serializer(component_name="Tree")
class TreeSerializer(serializers.Serializer[Any]):
    """A page of a history as a tree, with the scopes around it."""

    roots = TreeNodeSerializer(many=True)
    start = serializers.IntegerField()
    total = serializers.IntegerField()
    next_start = serializers.IntegerField(allow_null=True)
    previous_start = serializers.IntegerField(allow_null=True)
    is_cut = serializers.BooleanField(help_text="The history is longer than what is read of one.")


@extend_schema_serializer(component_name="Message")
class MessageSerializer(serializers.Serializer[Any]):
    """A message in a run's inbox."""

    id = serializers.CharField()
    queue = serializers.CharField()
    sent_at = Moment()
    order = serializers.IntegerField()
    state = serializers.ChoiceField(choices=[state.value for state in MessageState])
    received_by = serializers.CharField(help_text="The location of the wait that received it; empty before.")
    body = serializers.JSONField(allow_null=True, help_text="Null without the permission to see payloads.")
    response = serializers.JSONField(
        allow_null=True,
        help_text="Of a refused message, the reason. Null without the permission to see payloads.",
    )


@extend_schema_serializer(component_name="MessageReference")
class MessageReferenceSerializer(serializers.Serializer[Any]):
    """The id of a message that was sent."""

    id = serializers.CharField()
    run = serializers.CharField()


@extend_schema_serializer(component_name="MessagePage")
class MessagePageSerializer(serializers.Serializer[Any]):
    """A page of an inbox, in the order of the messages."""

    results = MessageSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


@extend_schema_serializer(component_name="Answer")
class AnswerSerializer(serializers.Serializer[Any]):
    """A run's response to a message. If there is none yet, look at the message again later."""

    message = serializers.CharField(help_text="The message's id.")
    is_answered = serializers.BooleanField()
    response = serializers.JSONField(allow_null=True)
