"""A project's own REST beside durable's: its component is called as ours would be."""

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


class RunView(GenericAPIView[Any]):
    """The run."""

    schema = AutoSchema()

    serializer_class = RunSerializer

    def get(self, request: Request, *args: object, **kwargs: object) -> Response:
        return Response({"metres": 42_195, "state": "resting"})


own = [path("race/", RunView.as_view())]
urlpatterns = [*own, path("durable/", include("durable.api.urls"))]
