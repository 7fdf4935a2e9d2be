"""Durable steps of one run."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.test.utils import override_settings

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, one_pass
from tests.benchmarks.workflows import asteps, steps


@measure("steps", beside_bare=True)
def one_run(bench: Bench) -> Iterator[Figure]:
    """1,500 steps of one run, each returning 30 bytes, in one pass in this process: steps per second.

    Claim and end of the run are not in it, the load of the empty history and the last commit are. The steps' functions
    do nothing, so this is the engine and the database alone.
    """
    count = bench.size(1500, 500)
    record = claimed(steps.start(count))
    yield Figure("steps", count / seconds(lambda: one_pass(record)), "/s")


@measure("steps unprepared", beside_bare=True)
def one_run_unprepared(bench: Bench) -> Iterator[Figure]:
    """The same without PREPARED_STATEMENTS, as behind a pooler in transaction mode: steps per second."""
    count = bench.size(1500, 500)
    record = claimed(steps.start(count))
    with override_settings(DURABLE={**settings.DURABLE, "PREPARED_STATEMENTS": False}):
        yield Figure("steps, unprepared", count / seconds(lambda: one_pass(record)), "/s")


@measure("async steps", beside_bare=True)
def one_async_run(bench: Bench) -> Iterator[Figure]:
    """The same by a coroutine function: steps per second. Its commits are made in a thread, as Django asks for."""
    count = bench.size(1500, 300)
    record = claimed(asteps.start(count))
    yield Figure("async steps", count / seconds(lambda: one_pass(record)), "/s")
