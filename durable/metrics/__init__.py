"""Metrics for Prometheus: workers count their work as it happens, and gauges are read from the rows of runs.

Owns only the setup. The extra is `durable-django[metrics]`; without it none of the modules is imported.

- `durable.metrics.instruments`: counters and histograms of passes, steps, failures, wake-ups and leases, per process.
- `durable.metrics.rows`: gauges of the runs by state and of the backlog, queried at each scrape.
- `durable.metrics.exposition`: both as text; `durable.metrics.urls` serves it, and `durable_worker --metrics-port`.

Processes share their counters through `PROMETHEUS_MULTIPROC_DIR`, as every application of prometheus_client does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from django.apps import apps

__all__ = ["MULTIPROCESS", "is_installed", "set_up"]

#: The environment variable that names the directory in which processes share their counts.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


def is_installed() -> bool:
    """Return whether prometheus_client is installed."""
    return find_spec("prometheus_client") is not None


def set_up() -> None:
    """Count in this process, if processes share a directory or django-prometheus is installed to show the counts."""
    is_shown = apps.is_installed("django_prometheus")
    if not (is_shown or os.environ.get(MULTIPROCESS)) or not is_installed():
        return
    from durable.metrics import instruments

    instruments.install()
    if is_shown:
        from prometheus_client import REGISTRY

        from durable.metrics.rows import RowsCollector

        REGISTRY.register(RowsCollector())
