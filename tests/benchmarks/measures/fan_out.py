"""One run that starts many."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.workers import elapsed, wait_for_all, workers
from tests.benchmarks.workflows import fan_out, steps


@measure("fan-out")
def fanned_out(bench: Bench) -> Iterator[Figure]:
    """A run that starts 10,000 runs of one step, by two workers, until the last has finished: runs per second.

    The parent does not wait for its children; what joining them would cost is not shown.
    """
    count = bench.size(10_000, 600)
    with workers(2):
        fan_out.start(count).result(timeout=600)
        wait_for_all(steps.name)
        yield Figure(f"fan-out of {count:,}", count / elapsed(steps.name), "/s")
