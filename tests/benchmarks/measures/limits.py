"""What slots of limits cost, and that never more are held than a limit allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

from durable.models import Run
from tests.benchmarks.cpu import cpu_seconds
from tests.benchmarks.measuring import Bench, Figure, measure
from tests.benchmarks.overlap import most_at_once
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import elapsed, wait_for_all, workers
from tests.benchmarks.workflows import AT_ONCE, keyed, one_key, steps

_KEYS = 1_000


@measure("limits")
def limits(bench: Bench) -> Iterator[Figure]:
    """One-step runs that each take a slot, beside as many without a limit, by two workers with four runs at once each:
    admissions per second from the first start to the last end, and the milliseconds of CPU of workers and PostgreSQL.

    One key: eight runs at once want four slots, so that there is always a line. 1,000 keys: of each key one run at a
    time. At last how many runs of the one key were in their steps at once, by the clock of the steps.
    """
    count = bench.size(5_000, 100)
    with workers(2, concurrency=4) as command:
        cpu = cpu_seconds(command.pid)
        kinds: dict[str, tuple[str, Callable[[], object]]] = {
            "one-step runs beside limits": (steps.name, partial(steps.start_many, [(1,)] * count)),
            "admissions, one key": (one_key.name, partial(one_key.start_many, [()] * count)),
            "admissions, 1,000 keys": (
                keyed.name,
                partial(keyed.start_many, [(str(number % _KEYS),) for number in range(count)]),
            ),
        }
        for name, (workflow, start) in kinds.items():
            empty_tables()
            before = cpu()
            start()
            wait_for_all(workflow)
            yield Figure(name, count / elapsed(workflow), "/s")
            yield Figure(f"CPU of {name}", (cpu() - before) / count * 1000, "ms/run")
            if workflow == one_key.name:
                yield Figure(f"steps at once with {AT_ONCE} slots", most_at_once(_in_steps()), "steps")


def _in_steps() -> Iterator[tuple[float, float]]:
    """Yield from when to when each run had its slot and worked, as the run returned it."""
    for output in Run.objects.filter(workflow=one_key.name).values_list("output", flat=True):
        begins, ends = json.loads(output or "")
        yield begins, ends
