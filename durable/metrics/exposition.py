"""The text that Prometheus reads: the counts of the processes and the gauges of the rows, in the requested format.

The metrics endpoint. Closed by default: open to the token in the settings, and to users who may view runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_cache_control
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from durable.conf import conf
from durable.metrics import MULTIPROCESS, is_installed
from durable.metrics.rows import NAMES, RowsCollector


class _Own(Collector):
    """The counts of this process alone, from prometheus_client's own registry."""

    def collect(self) -> Iterator[object]:  # type: ignore[override]  # any metric that is registered there
        # django-prometheus may include the rows already
        return (each for each in REGISTRY.collect() if each.name not in NAMES)


def registry() -> CollectorRegistry:
    """Return the counts of all processes that share a directory, else of this one; and the rows."""
    found = CollectorRegistry()
    if directory := os.environ.get(MULTIPROCESS):
        MultiProcessCollector(found, path=directory)  # type: ignore[no-untyped-call]  # prometheus_client's own
    else:
        found.register(_Own())
    found.register(RowsCollector())
    return found


def exposition(accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type for an Accept header; plain text for an invalid one."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        encode, content_type = choose_encoder("")
    return encode(registry()), content_type


@contextmanager
def shared_directory() -> Iterator[str]:
    """Yield the directory in which this process's children share their counts: the given one, or a temporary one."""
    if given := os.environ.get(MULTIPROCESS):
        yield given
        return
    with TemporaryDirectory(prefix="durable-metrics-") as directory:
        os.environ[MULTIPROCESS] = directory
        try:
            yield directory
        finally:
            del os.environ[MULTIPROCESS]


@contextmanager
def served(port: int, address: str) -> Iterator[int]:
    """Serve the metrics over HTTP in a thread; yield the port, chosen by the system for 0. Raises OSError."""
    server, thread = start_http_server(port, addr=address, registry=registry())
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


REFUSAL = (
    'Metrics are for users with the permission durable.view_run, and for "Authorization: Bearer <token>" with the '
    'token of DURABLE["METRICS_TOKEN"].\n'
)


@login_not_required  # a scraper has the token; the view refuses everybody else
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics as text; 401 without the token or the permission."""
    if not _may_read(request):
        refusal = HttpResponse(REFUSAL, status=401, content_type="text/plain; charset=utf-8")
        refusal["WWW-Authenticate"] = 'Bearer realm="durable"'
        return refusal
    if not is_installed():
        raise ImproperlyConfigured('durable.metrics.urls needs prometheus_client: install "durable-django[metrics]"')

    body, content_type = exposition(request.headers.get("Accept", ""))
    response = HttpResponse(body, content_type=content_type)
    patch_cache_control(response, no_store=True)
    return response


def _may_read(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if conf.METRICS_TOKEN and scheme.lower() == "bearer":
        return constant_time_compare(token.strip(), conf.METRICS_TOKEN)
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.has_perm("durable.view_run")
