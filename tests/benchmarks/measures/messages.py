"""A message's way to the code that waits for it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from statistics import median

import psutil
from django.conf import settings
from django.db import connection
from django.test import override_settings

from durable.models import Run
from project.servers import EmbeddedRedis
from tests.benchmarks.measuring import Bench, Figure, measure, percentile
from tests.benchmarks.workers import PATIENCE, settled, wait_for_all, workers
from tests.benchmarks.workflows import receiving, steps


@measure("messages")
def messages(bench: Bench) -> Iterator[Figure]:
    """From the call of `send()` in this process to workflow code running again in an idle worker: milliseconds.

    Runs whose history is one wait, sent to one after the other at irregular moments. "Under load" the worker has a
    backlog of one-step runs besides: what is shown then is the queue's length, since due runs are taken in turn.
    """
    count = bench.size(200, 40)
    with workers(1):
        yield from _figures("message", latencies(count))
        steps.start_many([(1,)] * bench.size(2000, 300))
        yield from _figures("message under load", latencies(bench.size(40, 10), pause=0.0))
        wait_for_all(steps.name)


@measure("messages without Redis")
def messages_without_redis(bench: Bench) -> Iterator[Figure]:
    """As "messages", with `REDIS` False: the worker listens to PostgreSQL, or polls it."""
    with settled(REDIS=False), workers(1):
        yield from _figures("message by LISTEN", latencies(bench.size(200, 40)))
    with settled(REDIS=False, LISTEN=False), workers(1):
        yield from _figures("message by polling", latencies(bench.size(40, 10), pause=0.3))


@measure("idle workers")
def idle_workers(bench: Bench) -> Iterator[Figure]:
    """What a `durable_worker` with one process costs that has nothing to do: transactions and CPU time, a minute.

    The CPU time is that of its two processes. Says nothing of the server's, nor of Redis.
    """
    ways: dict[str, dict[str, object]] = {
        "Redis": {},
        "LISTEN": {"REDIS": False},
        "polling": {"REDIS": False, "LISTEN": False},
    }
    for name, durable in ways.items():
        with settled(**durable), workers(1) as process:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            before, cpu = _transactions(), _cpu(family)
            seconds = bench.size(60, 5)
            time.sleep(seconds)
            yield Figure(f"transactions of an idle worker, {name}", (_transactions() - before) * 60 / seconds, "/min")
            yield Figure(f"CPU of an idle worker, {name}", (_cpu(family) - cpu) * 1000 * 60 / seconds, "ms/min")


def _transactions() -> int:
    """How many transactions this database has seen; idle sessions tell of theirs within ten seconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (each.cpu_times() for each in processes))


@measure("messages while Redis is away")
def messages_while_redis_is_away(bench: Bench) -> Iterator[Figure]:
    """As "messages", while the Redis of the worker and of this process is away."""
    before = os.environ["REDIS_URL"]
    with EmbeddedRedis() as own:
        queues = {name: {"URL": own.url, "SERIALIZER": "json"} for name in settings.RQ_QUEUES}
        os.environ["REDIS_URL"] = own.url
        try:
            with override_settings(RQ_QUEUES=queues), workers(1):
                own.stop("kill")
                try:
                    yield from _figures("message while Redis is away", latencies(bench.size(40, 10)))
                finally:
                    own.start()
        finally:
            os.environ["REDIS_URL"] = before


def _figures(name: str, latencies: list[float]) -> Iterator[Figure]:
    yield Figure(f"{name}, median", median(latencies) * 1000, "ms")
    yield Figure(f"{name}, p99", percentile(latencies, 0.99) * 1000, "ms")


def latencies(count: int, pause: float = 0.03) -> list[float]:
    handles = receiving.start_many([()] * count)
    while Run.objects.filter(workflow=receiving.name, state__in=("pending", "running")).exists():
        time.sleep(0.05)
    chooser = random.Random(count)
    for handle in handles:
        handle.send("news", time.time())
        time.sleep(pause * (0.5 + chooser.random()))
    return [float(handle.result(timeout=PATIENCE)) for handle in handles]
