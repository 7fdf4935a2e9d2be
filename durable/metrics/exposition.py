"""The text that Prometheus reads: what the processes counted and what the rows say, in the format that is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from durable.metrics import MULTIPROCESS
from durable.metrics.rows import NAMES, RowsCollector

__all__ = ["exposition", "served", "shared_directory"]


class _Own(Collector):
    """What this process alone has counted, in prometheus_client's own registry."""

    def collect(self) -> Iterator[object]:  # type: ignore[override]  # whatever is registered there
        # django-prometheus may have the rows there already
        return (each for each in REGISTRY.collect() if each.name not in NAMES)


def registry() -> CollectorRegistry:
    """What is counted: in all processes that share a directory, else in this one; and the rows."""
    found = CollectorRegistry()
    if directory := os.environ.get(MULTIPROCESS):
        MultiProcessCollector(found, path=directory)  # type: ignore[no-untyped-call]  # prometheus_client's own
    else:
        found.register(_Own())
    found.register(RowsCollector())
    return found


def exposition(accept: str) -> tuple[bytes, str]:
    """The metrics and their content type, for a request that accepts `accept`; the plain text for what cannot be read."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = choose_encoder("")
    return encode(registry()), content_type


@contextmanager
def shared_directory() -> Iterator[str]:
    """The directory in which this process's children share their counts: the given one, else a new one for the block."""
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
    """Serve the metrics over HTTP in a thread; the port, chosen by the system for 0. Raises OSError."""
    server, thread = start_http_server(port, addr=address, registry=registry())
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
