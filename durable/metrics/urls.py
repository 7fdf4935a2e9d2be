"""`path("metrics/", include("durable.metrics.urls"))`."""

from django.urls import path

from durable.metrics.exposition import metrics

urlpatterns = [path("", metrics, name="durable-metrics")]
