"""A project's own REST beside durable's: its components are called as ours would be."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response


class RunSerializer(serializers.Serializer[object]):
    """A run of the project's: of a race, on foot."""

    metres = serializers.IntegerField()
    state = serializers.ChoiceField(["walking", "resting"])
    event = serializers.ChoiceField(["entry", "removed", "reset", "run", "end"])  # as an event of our streams


class RunView(GenericAPIView[Any]):
    """The run."""

    schema = AutoSchema()

    serializer_class = RunSerializer

    def get(self, request: Request, *args: object, **kwargs: object) -> Response:
        return Response({"metres": 42_195, "state": "resting", "event": "run"})


own = [path("race/", RunView.as_view())]
urlpatterns = [*own, path("durable/", include("durable.api.urls"))]
