"""The project's addresses: its own, and durable's where it is installed."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path, reverse
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework import serializers, viewsets
from rest_framework.routers import DefaultRouter

from tests.foreign.intern.models import Race


class RunSerializer(serializers.ModelSerializer[Race]):
    """A run of the project's: of a race, on foot."""

    class Meta:
        model = Race
        fields = ["name", "metres"]


class Runs(viewsets.ModelViewSet[Race]):
    """The project's runs."""

    serializer_class = RunSerializer
    queryset = Race.objects.order_by("pk")


router = DefaultRouter()
router.register("runs", Runs)


def home(request: HttpRequest) -> HttpResponse:
    """The project's own first page."""
    return HttpResponse(f'<h1>Races</h1><p>{request.user}</p><a href="{reverse("admin:index")}">Verwaltung</a>')


urlpatterns: list[URLPattern | URLResolver] = [
    path("", home, name="home"),
    path("intern/verwaltung/", admin.site.urls),
    path("rest/", include(router.urls)),
    path("rest-schema/", SpectacularJSONAPIView.as_view()),
]
if apps.is_installed("durable"):
    urlpatterns += [
        path("intern/durable/", include("durable.api.urls")),
        path("intern/metrics/", include("durable.metrics.urls")),
    ]
