"""Starting runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from statistics import median
from subprocess import PIPE, Popen
from typing import Final

import psycopg

from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.workers import ROOT, settled
from tests.benchmarks.workflows import steps


@measure("start", beside_bare=True)
def one_by_one(bench: Bench) -> Iterator[Figure]:
    """`start()`, one after the other, in autocommit: runs per second, the notification included.

    No worker answers the notification meanwhile; with one, each later notification would be a job.
    """
    count = bench.size(3000, 50)

    def work() -> None:
        for _ in range(count):
            steps.start(1)

    yield Figure("start()", count / seconds(work), "/s")


@measure("starts of eight clients")
def of_eight_clients(bench: Bench) -> Iterator[Figure]:
    """`start()` in eight processes at once, beside a listening session: runs per second of all of them.

    Once with notifications through Redis, once through PostgreSQL, once without any. No worker takes the runs.
    """
    ways: dict[str, dict[str, object]] = {
        "Redis": {},
        "NOTIFY": {"REDIS": False},
        "no notification": {"REDIS": False, "LISTEN": False},
    }
    count = bench.size(300, 20)
    with psycopg.connect(bench.database_url, autocommit=True) as listener:
        listener.execute("LISTEN durable")
        for name, durable in ways.items():
            with settled(**durable):
                yield Figure(f"start() of 8 clients, {name}", 8 * count / _in_processes(8, count), "/s")


#: Sets Django up once, and lets each client start from there: it is ready after its first run, and begins at the end of
#: the input. Arguments: how many clients, how many runs of each.
_CLIENTS: Final = """
import os
import sys
import django
django.setup()
import durable.notifier.notify, durable.operations.start, durable.store.database, durable.store.postgres
from tests.benchmarks.workflows import steps
number, count = map(int, sys.argv[1:])
for _ in range(number):
    if os.fork() == 0:
        steps.start(1)
        os.write(1, b"ready\\n")
        os.read(0, 1)
        for _ in range(count):
            steps.start(1)
        os._exit(0)
sys.exit(max(os.wait()[1] for _ in range(number)) != 0)
"""


def _in_processes(number: int, count: int) -> float:
    """Seconds in which so many processes start `count` runs each."""
    command = [sys.executable, "-c", _CLIENTS, str(number), str(count)]
    with Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE) as clients:
        assert clients.stdin is not None
        assert clients.stdout is not None
        for _ in range(number):
            assert clients.stdout.readline() == b"ready\n"
        clients.stdin.close()
        duration = seconds(clients.wait)
    assert clients.returncode == 0
    return duration


@measure("keyed_start")
def keyed(bench: Bench) -> Iterator[Figure]:
    """`start()` with a key of its own and without one, by turns, in autocommit: runs per second, by the median of each.

    Says nothing of a key that an open run has, or that many ask for at once.
    """
    plain, with_key = [], []
    for number in range(bench.size(3000, 50)):
        plain.append(seconds(lambda: steps.start(1)))
        with_key.append(seconds(partial(steps.using(key=f"{number}").start, 1)))
    yield Figure("start() beside them", 1 / median(plain), "/s")
    yield Figure("start() with a key", 1 / median(with_key), "/s")


@measure("start_many", beside_bare=True)
def many(bench: Bench) -> Iterator[Figure]:
    """`start_many()` of 1,000 runs at a time: runs per second. Says nothing of inputs larger than a number."""
    times = bench.size(5, 1)

    def work() -> None:
        for _ in range(times):
            steps.start_many([(1,)] * 1000)

    yield Figure("start_many()", times * 1000 / seconds(work), "/s")
