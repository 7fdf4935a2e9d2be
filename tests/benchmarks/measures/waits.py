"""How late a worker takes up a run: after a message, a timer, the moment of a schedule."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from statistics import median

import psutil
from django.conf import settings
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from durable import Schedule, get_run
from durable.models import Run, Tick
from durable.operations.schedules.rows import delay_of, rows
from durable.operations.schedules.tick import next_look, tick_due
from project.servers import EmbeddedRedis
from tests.benchmarks.measuring import Bench, Figure, measure, percentile, seconds
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import PATIENCE, settled, wait_for_all, wait_until, workers
from tests.benchmarks.workflows import holding, receiving, sleeping, steps, ticking


@measure("messages")
def messages(bench: Bench) -> Iterator[Figure]:
    """From the call of `send()` in this process to workflow code running again in an idle worker: milliseconds.

    Runs whose history is one wait, sent to one after the other at irregular moments. "Under load" the worker has a
    backlog of one-step runs besides: what is shown then is the queue's length, since due runs are taken in turn.
    """
    count = bench.size(200, 10)
    with workers(1):
        yield from _figures("message", _latencies(count))
        steps.start_many([(1,)] * bench.size(2000, 50))
        yield from _figures("message under load", _latencies(bench.size(40, 10), pause=0.0))
        wait_for_all(steps.name)


@measure("messages, concurrency 4")
def messages_in_threads(bench: Bench) -> Iterator[Figure]:
    """As "messages", by an idle worker of four slots: milliseconds."""
    with workers(1, concurrency=4):
        yield from _figures("message, concurrency 4", _latencies(bench.size(200, 10)))


@measure("messages beside a step")
def messages_beside_a_step(bench: Bench) -> Iterator[Figure]:
    """As "messages", with a worker of two slots of which a step that does not end holds one: milliseconds."""
    with workers(1, concurrency=2):
        handle = holding.start()
        wait_until(lambda: Run.objects.filter(pk=handle.id, state="running").exists(), "the step did not begin")
        yield from _figures("message beside a step", _latencies(bench.size(200, 10)))


@measure("messages without Redis")
def messages_without_redis(bench: Bench) -> Iterator[Figure]:
    """As "messages", with `REDIS` False: the worker listens to PostgreSQL, or polls it."""
    with settled(REDIS=False), workers(1):
        yield from _figures("message by LISTEN", _latencies(bench.size(200, 10)))
    with settled(REDIS=False, LISTEN=False), workers(1):
        yield from _figures("message by polling", _latencies(bench.size(40, 10), pause=0.3))


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
            seconds = bench.size(60, 1)
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
                    yield from _figures("message while Redis is away", _latencies(bench.size(40, 10)))
                finally:
                    own.start()
        finally:
            os.environ["REDIS_URL"] = before


def _figures(name: str, latencies: list[float]) -> Iterator[Figure]:
    yield Figure(f"{name}, median", median(latencies) * 1000, "ms")
    yield Figure(f"{name}, p99", percentile(latencies, 0.99) * 1000, "ms")


def _latencies(count: int, pause: float = 0.03) -> list[float]:
    handles = receiving.start_many([()] * count)
    _wait_until_asleep(receiving.name)
    chooser = random.Random(count)
    for handle in handles:
        handle.send("news", time.time())
        time.sleep(pause * (0.5 + chooser.random()))
    return [float(handle.result(timeout=PATIENCE)) for handle in handles]


@measure("timers")
def timers(bench: Bench) -> Iterator[Figure]:
    """From the moment that a run sleeps until to its code running again, by one worker: milliseconds.

    Idle: a deadline each 50 ms. Crowded: 5,000 deadlines within one second, more than one worker passes in a second, so
    that the figure is a queue's length.
    """
    with workers(1):
        idle = _lateness(bench.size(200, 10), ahead=2.5, apart=0.05)
        yield from _figures("timer", idle)
        empty_tables()
        count = bench.size(5000, 50)
        crowd = _lateness(count, ahead=2 + count / 120, apart=1 / count)
        yield Figure(f"timer, {count:,} in 1 s, median", median(crowd) * 1000, "ms")
        yield Figure(f"timer, {count:,} in 1 s, last", max(crowd) * 1000, "ms")


def _lateness(count: int, ahead: float, apart: float) -> list[float]:
    """By run.

    Once more with twice the time ahead if a busy machine has not put all runs to sleep before the first is due.
    """
    first = timezone.now() + timedelta(seconds=ahead)
    handles = sleeping.start_many([(first + timedelta(seconds=number * apart),) for number in range(count)])
    _wait_until_asleep(sleeping.name)
    in_time = timezone.now() < first
    handles[-1].result(timeout=PATIENCE)
    found = [float(handle.result(timeout=PATIENCE)) for handle in handles]
    if in_time:
        return found
    empty_tables()
    return _lateness(count, 2 * ahead, apart)


def _wait_until_asleep(workflow: str) -> None:
    while Run.objects.filter(workflow=workflow, state__in=("pending", "running")).exists():
        time.sleep(0.05)


_MANY = 10_000


@measure("schedules")
def schedules(bench: Bench) -> Iterator[Figure]:
    """From the moment of a tick to its transaction, and to the code of its run, by one worker: milliseconds.

    Idle: five schedules, each with a moment a second, put off by jitter so that no two are due together. Then what a
    look costs that finds nothing due among 10,000 schedules, and how long one ticker takes to start the runs of all of
    them when they are due at once; no worker runs meanwhile.
    """
    with workers(1):
        late = _ticks_late(bench.size(300, 15))
    for what, values in late.items():
        yield from _figures(what, values)
    count = bench.size(_MANY, 200)
    moment = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    _make(count, moment)
    looks = [seconds(lambda: next_look(timezone.now())) for _ in range(100)]
    yield Figure(f"look at {count:,} schedules, median", median(looks) * 1000, "ms")
    yield Figure(f"{count:,} ticks at once", count / seconds(lambda: _tick_all(moment, count)), "/s")
    _forget()


def _ticks_late(ticks: int) -> dict[str, list[float]]:
    for number in range(5):
        name = f"idle-{number}"
        Schedule.objects.create(name=name, workflow=ticking.name, rule="every 1 second", jitter="1 s", overlap="allow")
    runs = Run.objects.filter(workflow=ticking.name, finished_at__isnull=False)
    wait_until(lambda: runs.count() >= ticks, "schedules do not tick", PATIENCE + ticks)
    rows().update(paused=True, due_at=None)
    wait_until(lambda: not Run.objects.filter(finished_at__isnull=True).exists(), "runs go on", PATIENCE)
    by_id = {each.pk: each for each in rows()}
    found: dict[str, list[float]] = {"tick": [], "tick to its run's code": []}
    ticks_after_the_first = Tick.objects.filter(outcome="started").order_by("moment")[5:]  # caches are warm by then
    for tick in ticks_after_the_first:
        due = tick.moment + delay_of(by_id[tick.schedule_id], tick.moment)
        found["tick"].append((tick.decided_at - due).total_seconds())
        found["tick to its run's code"].append(get_run(tick.run_id).result(timeout=PATIENCE) - due.timestamp())
    _forget()
    return found


def _make(count: int, moment: datetime) -> None:
    made = [
        Schedule(
            name=f"many-{number}",
            workflow=ticking.name,
            rule="every 1 hour",
            input='{"args":[],"kwargs":{}}',
            next_at=moment,
            due_at=moment,
            created_at=moment,
        )
        for number in range(count)
    ]
    Schedule.objects.bulk_create(made, batch_size=1_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_schedule")


def _tick_all(moment: datetime, count: int) -> None:
    ticked = 0
    while ticked < count:
        ticked += tick_due(moment)
    started = Run.objects.filter(workflow=ticking.name).count()
    assert started == count, f"{started} of {count} runs were started"


def _forget() -> None:
    rows().all().delete()
    empty_tables()
