"""The time of CPU that is used for a measurement, which others on the same machine do not change much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
from django.db import connection


def cpu_seconds(worker: int) -> Callable[[], float]:
    """Return a function that says how many seconds of CPU this worker and PostgreSQL have used so far.

    It counts all processes of both. PostgreSQL has to run on this machine.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [(backend,)] = cursor.fetchall()
    server = psutil.Process(backend).parent()
    assert server is not None
    trees = [psutil.Process(worker), server]
    return lambda: sum(sum(_used(each)) for each in trees)


def _used(root: psutil.Process) -> Iterator[float]:
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            yield times.user + times.system + times.children_user + times.children_system
