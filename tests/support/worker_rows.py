"""Rows of worker processes that do not exist."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from durable.models import WorkerProcess


def a_worker(name: str = "host:4711:abc", **columns: Any) -> WorkerProcess:
    """The row of a worker, alive unless the columns say otherwise."""
    now = timezone.now()
    given = {"host": "host", "pid": 4711, "queues": ["default", "high"], "slots": 8, "build": "7f3a"}
    times = {"started_at": now - timedelta(hours=2, minutes=10), "last_seen_at": now, "memory": 184_000_000}
    return WorkerProcess.objects.create(name=name, **{**given, **times, **columns})
