"""Branches."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import work_off
from tests.benchmarks.workflows import aparallel, parallel

COUNT = 100


@measure("join")
def join(bench: Bench) -> Iterator[Figure]:
    """Runs of a join of 100 branches of one step each, sync (threads) and async (tasks), by the worker's loop in this
    process: milliseconds a run.

    The steps do nothing, so branches only compete for the interpreter and for the run's row; what branches are for,
    waiting side by side, is not shown. A shift opens a connection for each thread of its sync joins, once.
    """
    times = bench.size(5, 2)
    for name, workflow in (("sync", parallel), ("async", aparallel)):
        workflow.start_many([(COUNT,)] * times)
        yield Figure(f"{name} join of {COUNT}", seconds(work_off) / times * 1000, "ms")
