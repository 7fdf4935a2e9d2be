"""Starting runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

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


@measure("keyed_start")
def keyed(bench: Bench) -> Iterator[Figure]:
    """`start()` with a key of its own and without one, by turns, in autocommit: runs per second, by the median of each.

    Says nothing of a key that an open run has, or that many ask for at once.
    """
    plain, with_key = [], []
    for number in range(bench.size(3000, 300)):
        plain.append(seconds(lambda: steps.start(1)))
        with_key.append(seconds(partial(steps.using(key=f"{number}").start, 1)))
    yield Figure("start() beside them", 1 / median(plain), "/s")
    yield Figure("start() with a key", 1 / median(with_key), "/s")


@measure("start_many", beside_bare=True)
def many(bench: Bench) -> Iterator[Figure]:
    """`start_many()` of 1,000 runs at a time: runs per second. Says nothing of inputs larger than a number."""
    times = bench.size(5, 2)

    def work() -> None:
        for _ in range(times):
            steps.start_many([(1,)] * 1000)

    yield Figure("start_many()", times * 1000 / seconds(work), "/s")
