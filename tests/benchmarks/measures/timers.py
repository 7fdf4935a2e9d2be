"""How late sleeping runs wake up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from statistics import median

from django.utils import timezone

from durable import Handle
from durable.models import Run
from tests.benchmarks.measuring import Bench, Figure, measure, percentile
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import PATIENCE, workers
from tests.benchmarks.workflows import sleeping


@measure("timers")
def timers(bench: Bench) -> Iterator[Figure]:
    """From the moment that a run sleeps until to its code running again, by one worker: milliseconds.

    Idle: a deadline each 50 ms. Crowded: 5,000 deadlines within one second, more than one worker passes in a second, so
    that the figure is a queue's length.
    """
    with workers(1):
        idle = _lateness(bench.size(200, 20), ahead=2.5, apart=0.05)
        yield Figure("timer, median", median(idle) * 1000, "ms")
        yield Figure("timer, p99", percentile(idle, 0.99) * 1000, "ms")
        empty_tables()
        count = bench.size(5000, 300)
        crowd = _lateness(count, ahead=2 + count / 120, apart=1 / count)
        yield Figure(f"timer, {count:,} in 1 s, median", median(crowd) * 1000, "ms")
        yield Figure(f"timer, {count:,} in 1 s, last", max(crowd) * 1000, "ms")


def _lateness(count: int, ahead: float, apart: float) -> list[float]:
    """By run.

    Once more with twice the time ahead if a busy machine has not put all runs to sleep before the first is due.
    """
    first = timezone.now() + timedelta(seconds=ahead)
    handles = sleeping.start_many([(_moment(first, number * apart),) for number in range(count)])
    _wait_until_asleep()
    in_time = timezone.now() < first
    found = _outputs(handles)
    if in_time:
        return found
    empty_tables()
    return _lateness(count, 2 * ahead, apart)


def _moment(first: datetime, seconds: float) -> datetime:
    return first + timedelta(seconds=seconds)


def _wait_until_asleep() -> None:
    while Run.objects.filter(workflow=sleeping.name, state__in=("pending", "running")).exists():
        time.sleep(0.05)


def _outputs(handles: list[Handle]) -> list[float]:
    handles[-1].result(timeout=PATIENCE)
    return [float(handle.result(timeout=PATIENCE)) for handle in handles]
