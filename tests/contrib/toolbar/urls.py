"""Views that call verbs in each kind of transaction, and the toolbar's own addresses."""

from __future__ import annotations

from contextlib import suppress

from debug_toolbar.toolbar import debug_toolbar_urls
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from durable import get_run, operations
from durable.errors import RunNotFoundError
from tests.contrib.toolbar.workflows import waiting

PAGE = "<html><body>done</body></html>"


def each_kind(request: HttpRequest) -> HttpResponse:
    """Call verbs in autocommit, in a block that commits, in one that is rolled back, and in a savepoint."""
    waiting.using(id="plain").start()
    with transaction.atomic():
        get_run("plain").send("word", {"secret": 1})
    with suppress(ZeroDivisionError), transaction.atomic():
        waiting.using(id="lost").start()
        raise ZeroDivisionError
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            waiting.using(id="lost-too").start()
            raise ZeroDivisionError
        get_run("plain").pause()
    get_run("plain").restart()
    waiting.using(key="one").start_or_send("word", 1)
    with suppress(RunNotFoundError):
        operations.cancel("nobody")
    return HttpResponse(PAGE)


def many(request: HttpRequest) -> HttpResponse:
    """Start many, in one verb."""
    waiting.start_many([()] * 25)
    return HttpResponse(PAGE)


async def by_the_loop(request: HttpRequest) -> HttpResponse:
    """Start from an event loop."""
    await waiting.using(id="asynchronous").astart()
    return HttpResponse(PAGE)


def nothing(request: HttpRequest) -> HttpResponse:
    """Call no verb."""
    return HttpResponse(PAGE)


def unfinished(request: HttpRequest) -> HttpResponse:
    """Start in a transaction that is around the toolbar, as in a test case."""
    waiting.using(id="later").start()
    return HttpResponse(PAGE)


urlpatterns = [
    path("kinds/", each_kind),
    path("many/", many),
    path("loop/", by_the_loop),
    path("nothing/", nothing),
    path("unfinished/", unfinished),
    path("admin/", admin.site.urls),
    *debug_toolbar_urls(),
]
