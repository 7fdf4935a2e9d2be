"""The worker's loop without RQ."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import work_off
from tests.benchmarks.workflows import steps


@measure("in process", beside_bare=True)
def in_process(bench: Bench) -> Iterator[Figure]:
    """Due runs of one and of five steps, claimed and passed by the worker's loop in this process: runs per second.

    The runs were started before. What is missing to "one worker" is RQ, the start and the interpreter's other threads.
    """
    count = bench.size(1000, 200)
    for name, length in (("one", 1), ("five", 5)):
        steps.start_many([(length,)] * count)
        yield Figure(f"{name}-step runs in process", count / seconds(work_off), "/s")
