"""A long loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

from tests.benchmarks import workflows
from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.passing import claimed, count_rows, one_pass
from tests.benchmarks.workflows import counting


@measure("loop", beside_bare=True)
def loop(bench: Bench) -> Iterator[Figure]:
    """100,000 iterations of one step, in one pass: iterations per second, last tenth against first, most rows.

    Rows are those of the run's entries, counted at each tenth (that time is taken out). Shows no pass that begins in
    the middle, nor what dead rows cost once autovacuum comes.
    """
    count = bench.size(100_000, 3000)
    handle = counting.start(count)
    record = claimed(handle)
    marks: list[tuple[float, float]] = []
    rows: list[int] = []

    def at_a_tenth(_number: int) -> None:
        before = time.perf_counter()
        rows.append(count_rows("durable_entry", handle.id))
        marks.append((before, time.perf_counter()))

    workflows.watch[:] = [at_a_tenth]
    try:
        outcome = one_pass(record)
    finally:
        workflows.watch.clear()
    assert outcome.state == "completed", outcome
    tenths = [end - start for (_, start), (end, _) in pairwise(marks)]
    yield Figure("loop iterations", count / sum(tenths), "/s")
    yield Figure("loop, last tenth against first", tenths[-1] / tenths[0], "times")
    yield Figure("loop, most rows", max(rows), "rows")
