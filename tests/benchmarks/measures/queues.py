"""Runs spread over many queues, as of a project with a queue for each tenant."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings

from durable.conf import conf
from durable.notifier.redis_clients import client
from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import elapsed, settled, wait_for_all, workers
from tests.benchmarks.workflows import steps


@measure("many queues")
def many_queues(bench: Bench) -> Iterator[Figure]:
    """One-step runs in one queue, and as many in 200 queues, by workers that serve all of them: runs per second.

    By one worker process, and without Redis by four, which all hear of each queue. The runs of a queue are started with
    one `start_many`.
    """
    yield from _of_both(bench, 1, "")
    with settled(REDIS=False):
        yield from _of_both(bench, 4, " without Redis")


def _of_both(bench: Bench, processes: int, how: str) -> Iterator[Figure]:
    tenants = [name for name in settings.RQ_QUEUES if name != conf.QUEUE]
    each = bench.size(10, 2)
    count = each * len(tenants)
    with workers(processes, queues=list(settings.RQ_QUEUES)):
        steps.start_many([(1,)] * count)
        wait_for_all(steps.name)
        yield Figure(f"one-step runs beside many queues{how}", count / elapsed(steps.name), "/s")
        empty_tables()
        before = _commands()
        for name in tenants:
            steps.using(queue=name).start_many([(1,)] * each)
        wait_for_all(steps.name)
        yield Figure(f"one-step runs of 200 queues{how}", count / elapsed(steps.name), "/s")
        if conf.REDIS:
            yield Figure("Redis commands of a run in 200 queues", (_commands() - before) / count, "commands")
        empty_tables()


def _commands() -> int:
    return int(client(conf.QUEUE).info("stats")["total_commands_processed"])
