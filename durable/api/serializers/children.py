"""The shapes of children: the list of a run's, and their numbers."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from durable.api.serializers.fields import PageQuery, Text, Words
from durable.api.serializers.runs import STATES, RunSerializer


class ChildListQuery(PageQuery):
    """The children to list; every given condition has to hold."""

    state = Words(child=serializers.ChoiceField(choices=STATES), required=False)
    group = Text(required=False, max_length=1024, help_text="The location of a group.")


@extend_schema_serializer(component_name="Child")
class ChildSerializer(serializers.Serializer[Any]):
    """A child of a run."""

    run = RunSerializer()
    location = serializers.CharField(help_text="Where its parent has started it.")
    group = serializers.CharField(allow_null=True, help_text="The location of the group that it belongs to.")

    def to_representation(self, instance: Any) -> Any:
        """Return null for a child that belongs to no group."""
        return {**super().to_representation(instance), "group": instance.group or None}


@extend_schema_serializer(component_name="ChildPage")
class ChildPageSerializer(serializers.Serializer[Any]):
    """A page of children. More may follow at `next_cursor` even if this page is short."""

    results = ChildSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)
