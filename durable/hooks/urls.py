"""`path("durable/", include("durable.hooks.urls"))`."""

from __future__ import annotations

from django.urls import path

from durable.hooks.links import link
from durable.hooks.progress import progress

urlpatterns = [
    path("links/<str:token>/", link, name="durable-link"),
    # an address that was copied with something behind it, or without its slash, stays out of Django's log too
    path("links/<path:token>", link),
    path("progress/<str:token>/", progress, name="durable-progress"),
]
