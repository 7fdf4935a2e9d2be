"""Durable steps of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.conf import settings
from django.test.utils import override_settings

from tests.benchmarks.cpu import cpu_seconds
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, one_pass
from tests.benchmarks.workflows import acalls, asteps, steps, steps_once


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
    """The same by a coroutine function: steps per second. They are called and committed in a thread."""
    count = bench.size(1500, 300)
    record = claimed(asteps.start(count))
    yield Figure("async steps", count / seconds(lambda: one_pass(record)), "/s")


@measure("async steps of async functions", beside_bare=True)
def one_async_run_of_async_functions(bench: Bench) -> Iterator[Figure]:
    """The same, with steps of coroutine functions: steps per second. The event loop commits them itself."""
    count = bench.size(1500, 300)
    record = claimed(acalls.start(count))
    yield Figure("async steps of async functions", count / seconds(lambda: one_pass(record)), "/s")


@measure("steps once")
def done_once(bench: Bench) -> Iterator[Figure]:
    """A step with `once=True` beside a plain one: microseconds of CPU of each, of this process and of PostgreSQL, and
    how often either is done in a second. Ten passes of each, in turn, so that others on the machine disturb both.
    """
    count, cpu = bench.size(300, 100), cpu_seconds(os.getpid())
    kinds: dict[str, Any] = {"plain": steps, "once": steps_once}
    used = dict.fromkeys(kinds, 0.0)
    took = dict.fromkeys(kinds, 0.0)
    for _ in range(10):
        for kind, workflow in kinds.items():
            record = claimed(workflow.start(count))
            before = cpu()
            took[kind] += seconds(partial(one_pass, record))
            used[kind] += cpu() - before
    for kind in kinds:
        yield Figure(f"{kind} steps beside each other", 10 * count / took[kind], "/s")
        yield Figure(f"CPU of {kind} steps beside each other", used[kind] / 10 / count * 1e6, "µs")
