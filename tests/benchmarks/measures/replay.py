"""Replaying a history."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from durable import Handle
from durable.core.records import Batch, EntryRecord, RunRecord
from durable.store import store_for
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, one_pass
from tests.benchmarks.workflows import asteps, steps


@measure("replay")
def replay(bench: Bench) -> Iterator[Figure]:
    """A pass over a recorded history, its load and the commit that parks it again included: µs and bytes per entry.

    The time is the middle one of three passes: about every third has a full collection of the garbage in it, which
    takes as long again. With --short it is that of one pass. Bytes are the peak of what Python allocates during a pass,
    counted by tracemalloc in a pass of its own; libpq's copy of the result is not in it. The values are 30 bytes;
    larger ones cost their decoding.
    """
    passes = bench.size(3, 1)
    for count in (1000, 10_000, 50_000)[: bench.size(3, 2)]:
        handle = recorded(count, is_async=False)
        yield Figure(f"replay of {count:,}", _time(handle, count, passes), "µs/entry")
        yield Figure(f"memory of {count:,}", _peak(claimed(handle)) / count, "bytes/entry")
    handle = recorded(10_000, is_async=True)
    yield Figure("async replay of 10,000", _time(handle, 10_000, passes), "µs/entry")


def recorded(count: int, *, is_async: bool) -> Handle:
    """A sleeping run with a history of so many steps: the record of one, as the engine writes it, multiplied."""
    handle = (asteps if is_async else steps).start(count, then_sleep=True)
    sample = _sample()
    record = claimed(handle)
    store = store_for("default")
    for first in range(0, count, 5000):
        numbers = range(first, min(count, first + 5000))
        entries = [
            replace(sample, location=f"step-{number}", ordinal=2 * number, finished_ordinal=2 * number + 1)
            for number in numbers
        ]
        store.commit(Batch(run_id=record.id, fence=record.fence, now=record.created_at, entries=entries))
    # A pass after a run's first claim takes its history for empty, and would execute every step again.
    store.release([(record.id, record.fence)], record.created_at)
    _replayed(claimed(handle))
    return handle


def _sample() -> EntryRecord:
    handle = steps.start(1)
    one_pass(claimed(handle))
    return store_for("default").history(handle.id)[0]


def _time(handle: Handle, count: int, passes: int) -> float:
    times = []
    for _ in range(passes):
        record = claimed(handle)
        times.append(seconds(partial(_replayed, record)))
    return median(times) / count * 1e6


def _replayed(record: RunRecord) -> None:
    outcome = one_pass(record)
    assert outcome.state == "sleeping", outcome


def _peak(record: RunRecord) -> int:
    tracemalloc.start()
    try:
        _replayed(record)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
