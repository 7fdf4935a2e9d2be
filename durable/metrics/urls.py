"""`path("metrics/", include("durable.metrics.urls"))`."""

from django.urls import path

from durable.metrics.views import metrics

urlpatterns = [path("", metrics, name="durable-metrics")]
