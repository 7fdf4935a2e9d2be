"""Runs from start to finish, by worker processes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import elapsed, wait_for_all, workers
from tests.benchmarks.workflows import steps


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
        for name, length, count in (("one", 1, bench.size(2000, 400)), ("five", 5, bench.size(1000, 150))):
            steps.start_many([(length,)] * count)
            wait_for_all(steps.name)
            yield Figure(f"{name}-step runs, {suffix}", count / elapsed(steps.name), "/s")
            empty_tables()
