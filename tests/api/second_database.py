"""The interface below another prefix, in a namespace of the host's."""

from django.urls import include, path

inner = [path("v1/", include("durable.api.urls", namespace="runs"))]

urlpatterns = [path("deep/below/", include((inner, "host")))]
