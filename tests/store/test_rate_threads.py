"""Rates with several connections and the real clock.

The moments that were given and begun are compared, and not how fast the machine is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections

from durable.core.limits.rates import Rate, RateWant, from_nanoseconds, nanoseconds
from durable.core.records import RunRecord
from durable.store import Store
from tests.store.making import NOW, started
from tests.store.windows import check

pytestmark = pytest.mark.slow

THREADS = 4
ATTEMPTS = 25  # of each thread
HUNDRED = RateWant("real", "k", 1, Rate.of("100/s", 3))


def together(runs: list[RunRecord], work: Callable[[RunRecord], None]) -> None:
    """Call `work(run)` in a thread for each run, at one moment; each has connections of its own."""
    barrier = threading.Barrier(len(runs))

    def call(run: RunRecord) -> None:
        try:
            barrier.wait(60)
            work(run)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(runs)) as pool:
        for future in [pool.submit(call, run) for run in runs]:
            future.result(120)


def test_two_connections_never_get_the_same_moment(store: Store) -> None:
    runs = [started(store, f"run-{number}") for number in range(THREADS)]
    given: list[datetime] = []

    def reserve(run: RunRecord) -> None:
        for number in range(ATTEMPTS):
            want = RateWant("shared", "k", 1, Rate.of("1/s"))
            given.append(store.reserve(run.id, run.fence, f"s{number}", want, NOW).at)

    together(runs, reserve)
    assert sorted(given) == [NOW + timedelta(seconds=each) for each in range(THREADS * ATTEMPTS)]


def test_with_the_real_clock_no_time_has_more_than_the_rate_and_the_burst(store: Store) -> None:
    runs = [started(store, f"run-{number}") for number in range(THREADS)]
    begun: list[tuple[int, int]] = []

    def attempts(run: RunRecord) -> None:
        for _ in range(ATTEMPTS):
            while True:
                answer = store.reserve(run.id, run.fence, "s", HUNDRED, datetime.now(UTC), patience=0.005)
                if answer.begins:
                    begun.append((nanoseconds(answer.at), 1))
                    break
                time.sleep(max(0.0, (answer.at - datetime.now(UTC)).total_seconds()))

    together(runs, attempts)
    assert len(begun) == THREADS * ATTEMPTS
    check(begun, 10_000_000, 3)
    moments = sorted(each for each, _ in begun)
    assert from_nanoseconds(moments[-1]) - from_nanoseconds(moments[0]) >= timedelta(seconds=0.96)
