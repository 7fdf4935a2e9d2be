"""`path("durable/", include("durable.hooks.urls"))`."""

from __future__ import annotations

from django.urls import path

from durable.hooks.links import link
from durable.hooks.people import by_link, by_login
from durable.hooks.progress import progress

urlpatterns = [
    path("links/<str:token>/", link, name="durable-link"),
    # an address that was copied with something behind it, or without its slash, stays out of Django's log too
    path("links/<path:token>", link),
    path("questions/<str:question_id>/", by_login, name="durable-asked"),
    path("questions/<str:question_id>/<str:word>/<str:token>/", by_link, name="durable-question"),
    path("progress/<str:token>/", progress, name="durable-progress"),
]
