"""Branches."""

from __future__ import annotations

from collections.abc import Iterator

from durable import Handle
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, one_pass
from tests.benchmarks.workflows import aparallel, parallel

COUNT = 100


@measure("join")
def join(bench: Bench) -> Iterator[Figure]:
    """A join of 100 branches of one step each, in one pass, sync (threads) and async (tasks): milliseconds.

    The steps do nothing, so branches only compete for the interpreter and for the run's row; what branches are for,
    waiting side by side, is not shown. A sync join opens a connection for each of its threads.
    """
    times = bench.size(5, 2)
    yield Figure(f"sync join of {COUNT}", _time([parallel.start(COUNT) for _ in range(times)]), "ms")
    yield Figure(f"async join of {COUNT}", _time([aparallel.start(COUNT) for _ in range(times)]), "ms")


def _time(handles: list[Handle]) -> float:
    records = [claimed(handle) for handle in handles]

    def work() -> None:
        for record in records:
            one_pass(record)

    return seconds(work) / len(records) * 1000
