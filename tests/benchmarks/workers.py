"""A real `durable_worker`, warm: started, known to RQ, and with a run behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
import rq
from django.conf import settings
from django.db import connection
from django.db.models import Max, Min
from django.test import override_settings
from django.utils import timezone

from durable.conf import conf
from durable.core.records import ENDED
from durable.models import Run, WorkerProcess
from durable.notifier.redis_clients import client
from tests.benchmarks.workflows import noting

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 300.0  # seconds; the machine may be busy
UNENDED = ("pending", "running", "sleeping")


@contextmanager
def settled(**durable: object) -> Iterator[None]:
    """Inside, this process and those that it starts have these settings in DURABLE."""
    os.environ["BENCHMARKS_DURABLE"] = json.dumps(durable)
    try:
        with override_settings(DURABLE={**settings.DURABLE, **durable}):
            yield
    finally:
        del os.environ["BENCHMARKS_DURABLE"]


@contextmanager
def workers(
    processes: int, *, concurrency: int = 1, queues: Sequence[str] = (conf.QUEUE,)
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the command of one `durable_worker` with so many worker processes, which wait for work in `queues`.

    Each executes `concurrency` runs at once.
    """
    command = [sys.executable, str(ROOT / "manage.py"), "durable_worker", "--skip-checks"]
    options = [f"--processes={processes}", f"--concurrency={concurrency}"]
    process = subprocess.Popen([*command, *options, *queues], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _serving() >= processes, "workers did not start")
        noting.start().result(timeout=PATIENCE)
        for each in noting.start_many([()] * processes * _warming()):
            each.result(timeout=PATIENCE)
        Run.objects.all().delete()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE)
        if not conf.REDIS:
            WorkerProcess.objects.all().delete()  # of those that could not sign off; no other worker is there to do it
        wait_until(lambda: _serving() == 0, "workers did not sign off")


def _warming() -> int:
    """How many runs make a process warm: with 40, each of them has its share."""
    return 4 if "BENCHMARKS_SHORT" in os.environ else 40


def _serving() -> int:
    """How many workers wait for work."""
    return rq.Worker.count(connection=client(conf.QUEUE)) if conf.REDIS else WorkerProcess.objects.count()


def forget_killed() -> None:
    """Sign off the workers that were killed, which could not do so; others wait for it."""
    for each in rq.Worker.all(connection=client(conf.QUEUE)):
        each.register_death()  # type: ignore[no-untyped-call]  # of RQ, without annotations


def wait_for_all(workflow: str, patience: float = 600.0) -> None:
    """Wait until no run of the workflow is under way."""
    wait_until(lambda: not Run.objects.filter(workflow=workflow, state__in=UNENDED).exists(), "runs go on", patience)


def elapsed(*workflows: str) -> float:
    """Seconds from the start of the first to the end of the last run of the workflows, by the rows; all completed."""
    runs = Run.objects.filter(workflow__in=workflows)
    failed = runs.filter(state__in=ENDED).exclude(state="completed").count()
    assert not failed, f"{failed} runs of {' and '.join(workflows)} failed"
    moments = runs.aggregate(first=Min("created_at"), last=Max("finished_at"))
    span: timedelta = moments["last"] - moments["first"]
    return span.total_seconds()


def wait_until(condition: object, problem: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} within {patience:g} s, at {timezone.now()} on {connection.alias}")
        time.sleep(0.05)


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
