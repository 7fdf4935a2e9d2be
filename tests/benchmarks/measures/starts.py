"""Starting runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

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
    """`start()` with a key of its own and without one, in turns of 50, in autocommit: runs per second.

    Says nothing of a key that an open run has, or that many ask for at once.
    """
    turns = bench.size(60, 6)
    plain = with_key = 0.0
    for turn in range(turns):
        plain += seconds(lambda: [steps.start(1) for _ in range(50)])
        keys = [f"{turn}-{number}" for number in range(50)]
        with_key += seconds(partial(_start_with, keys))
    yield Figure("start() beside them", turns * 50 / plain, "/s")
    yield Figure("start() with a key", turns * 50 / with_key, "/s")


def _start_with(keys: Sequence[str]) -> None:
    for key in keys:
        steps.using(key=key).start(1)


@measure("start_many", beside_bare=True)
def many(bench: Bench) -> Iterator[Figure]:
    """`start_many()` of 1,000 runs at a time: runs per second. Says nothing of inputs larger than a number."""
    times = bench.size(5, 2)

    def work() -> None:
        for _ in range(times):
            steps.start_many([(1,)] * 1000)

    yield Figure("start_many()", times * 1000 / seconds(work), "/s")
