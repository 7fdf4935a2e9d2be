"""The shape of a problem document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


class FaultSerializer(serializers.Serializer[Any]):
    """One fault of a request."""

    at = serializers.CharField(help_text="The name in the request, as a path: `args/0`; empty for the whole.")
    detail = serializers.CharField()
    code = serializers.CharField()


@extend_schema_serializer(component_name="Problem")
class ProblemSerializer(serializers.Serializer[Any]):
    """A problem document (RFC 9457). Problems have further members of their own, such as `state` and `allowed`."""

    type = serializers.CharField(help_text="`urn:durable:problem:<code>`")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="What was expected, what was found, and what to do.")
    instance = serializers.CharField(help_text="The path of the request.")
    code = serializers.CharField(help_text="Stable: what a program goes by.")
    errors = FaultSerializer(  # type: ignore[assignment]  # DRF removes fields from the class
        many=True, required=False, help_text="Of an invalid request: each fault."
    )
    state = serializers.CharField(required=False, help_text="The run's state, where that is in the way.")
    allowed = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="The states in which the action is allowed."
    )
