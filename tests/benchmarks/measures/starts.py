"""Starting runs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.workflows import steps


@measure("start", beside_bare=True)
def one_by_one(bench: Bench) -> Iterator[Figure]:
    """`start()`, one after the other, in autocommit: runs per second, the notification included.

    No worker answers the notification meanwhile; with one, each later notification would be a job.
    """
    count = bench.size(3000, 300)

    def work() -> None:
        for _ in range(count):
            steps.start(1)

    yield Figure("start()", count / seconds(work), "/s")


@measure("start_many", beside_bare=True)
def many(bench: Bench) -> Iterator[Figure]:
    """`start_many()` of 1,000 runs at a time: runs per second. Says nothing of inputs larger than a number."""
    times = bench.size(5, 2)

    def work() -> None:
        for _ in range(times):
            steps.start_many([(1,)] * 1000)

    yield Figure("start_many()", times * 1000 / seconds(work), "/s")
