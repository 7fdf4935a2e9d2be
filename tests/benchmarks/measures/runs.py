"""Many short runs, by the worker's loop and by real workers: at once, under a held snapshot, in many queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.db.models import Max, Min

from durable.conf import conf
from durable.models import Run
from durable.notifier.redis_clients import client
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import empty_tables, work_off
from tests.benchmarks.workers import elapsed, settled, wait_for_all, wait_until, workers
from tests.benchmarks.workflows import steps, waiting


@measure("runs, 1 worker", beside_bare=True)
def one_worker(bench: Bench) -> Iterator[Figure]:
    """Runs of one and of five steps, started together with `start_many`, by `durable_worker`: runs per second.

    From the start of the first to the end of the last, by the times in their rows. The worker is warm. Shows
    throughput, not how long a run that comes alone takes.
    """
    yield from _finished(bench, 1)


@measure("runs, 2 workers", beside_bare=True)
def two_workers(bench: Bench) -> Iterator[Figure]:
    """The same with `--processes 2`: runs per second. Workers, PostgreSQL and Redis share this machine's cores."""
    yield from _finished(bench, 2)


@measure("runs, concurrency 4", beside_bare=True)
def four_slots(bench: Bench) -> Iterator[Figure]:
    """The same with `--concurrency 4`: runs per second. The runs of the one worker share an interpreter."""
    yield from _finished(bench, 1, concurrency=4)


def _finished(bench: Bench, processes: int, concurrency: int = 1) -> Iterator[Figure]:
    suffix = f"{processes} worker{'s' * (processes > 1)}" if concurrency == 1 else f"concurrency {concurrency}"
    with workers(processes, concurrency=concurrency):
        for name, length, count in (("one", 1, bench.size(2000, 40)), ("five", 5, bench.size(1000, 15))):
            steps.start_many([(length,)] * count)
            wait_for_all(steps.name)
            yield Figure(f"{name}-step runs, {suffix}", count / elapsed(steps.name), "/s")
            empty_tables()


@measure("in process", beside_bare=True)
def in_process(bench: Bench) -> Iterator[Figure]:
    """Due runs of one and of five steps, claimed and passed by the worker's loop in this process: runs per second.

    The runs were started before. What is missing to "one worker" is RQ, the start and the interpreter's other threads.
    """
    count = bench.size(1000, 40)
    for name, length in (("one", 1), ("five", 5)):
        steps.start_many([(length,)] * count)
        yield Figure(f"{name}-step runs in process", count / seconds(work_off), "/s")


@measure("concurrency")
def concurrency(bench: Bench) -> Iterator[Figure]:
    """One process with one slot, with four and with eight: runs per second of a step that waits 20 ms.

    So does a step that asks another service. "runs, concurrency 4" has those of a step that does nothing.
    """
    for slots in (1, 4, 8):
        with workers(1, concurrency=slots):
            count = bench.size(100, 5) * slots
            waiting.start_many([()] * count)
            wait_for_all(waiting.name)
            yield Figure(f"runs that wait 20 ms, concurrency {slots}", count / elapsed(waiting.name), "/s")
            empty_tables()


@measure("held snapshot")
def under_a_held_snapshot(bench: Bench) -> Iterator[Figure]:
    """One-step runs per second by one `durable_worker`, before and after 100,000 under a REPEATABLE READ snapshot.

    Both are medians of three batches of 2,000 that are started together; the runs between them are batches as well, and
    all stay in the tables. A dump, an idle transaction or a replica's feedback holds such a snapshot.
    """
    batch = bench.size(2_000, 10)
    batches = bench.size(100_000, 40) // batch
    with workers(1):
        before = [_rate(batch) for _ in range(3)]
        with _held_snapshot(bench.database_url):
            under = [_rate(batch) for _ in range(batches)][-3:]
        yield Figure("one-step runs before a snapshot", sorted(before)[1], "/s")
        yield Figure("one-step runs under a snapshot", sorted(under)[1], "/s")


@contextmanager
def _held_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM durable_run")
        yield


def _rate(batch: int) -> float:
    """Runs of a batch per second, from the start of the first to the end of the last."""
    ids = [handle.id for handle in steps.start_many([(1,)] * batch)]
    wait_until(lambda: _are_over(ids), "runs go on", 600)
    span = Run.objects.filter(pk__in=ids).aggregate(first=Min("created_at"), last=Max("finished_at"))
    seconds: float = (span["last"] - span["first"]).total_seconds()
    return len(ids) / seconds


def _are_over(ids: Sequence[str]) -> bool:
    """Asked by key: a question by state would pass over what the snapshot keeps, beside the workers."""
    last = Run.objects.filter(pk=ids[-1], finished_at__isnull=False).exists()
    return last and not Run.objects.filter(pk__in=ids, finished_at__isnull=True).exists()


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
    tenants = [name for name in settings.RQ_QUEUES if name != conf.QUEUE][: bench.size(200, 20)]
    each = bench.size(10, 1)
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
