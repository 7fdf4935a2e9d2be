"""A page of a project that streams a step."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.tools.many_readers.settings")

from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponseBase
from django.urls import path

application = get_asgi_application()


def stream(request: HttpRequest, run_id: str) -> HttpResponseBase:
    from durable import streams

    return streams.response(request, run_id, "write")


urlpatterns = [path("stream/<str:run_id>", stream)]
