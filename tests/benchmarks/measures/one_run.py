"""One run, passed in this process: its steps, its replay, joins and loops, beside what one connection can commit."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from durable import Handle
from durable.core.records import Batch, EntryRecord, RunRecord
from durable.guard import statements
from durable.store import store_for
from durable.testing import Harness
from tests.benchmarks import workflows
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, count_rows, one_pass, work_off
from tests.benchmarks.workers import cpu_seconds
from tests.benchmarks.workflows import RESULT, acalls, aparallel, asteps, counting, parallel, steps, steps_once

TABLE = """CREATE TABLE IF NOT EXISTS bare (
  id bigserial PRIMARY KEY, run text NOT NULL, location text NOT NULL, output text, created_at timestamptz NOT NULL)"""
INSERT = "INSERT INTO bare (run, location, output, created_at) VALUES (%s, %s, %s, %s)"


@cache
def _connection(url: str) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(TABLE)
    return connection


def bare_rate(bench: Bench, for_seconds: float) -> float:
    """Rows per second."""
    cursor = _connection(bench.database_url).cursor()
    now = timezone.now()
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < for_seconds:
        for _ in range(50):
            cursor.execute(INSERT, ["run", f"step-{count}", RESULT, now])
        count += 50
    cursor.execute("TRUNCATE bare")
    return count / elapsed


@measure("bare", is_peer=True)
def bare(bench: Bench) -> Iterator[Figure]:
    """One-row inserts through psycopg, autocommit, one connection, statement prepared by psycopg: rows per second.

    Says nothing of what several connections reach together: their commits share a flush of the log.
    """
    yield Figure("bare inserts", bare_rate(bench, bench.size(20, 5) / 10), "/s")


@measure("steps", beside_bare=True)
def one_run(bench: Bench) -> Iterator[Figure]:
    """1,500 steps of one run, each returning 30 bytes, in one pass in this process: steps per second.

    Claim and end of the run are not in it, the load of the empty history and the last commit are. The steps' functions
    do nothing, so this is the engine and the database alone.
    """
    count = bench.size(1500, 100)
    record = claimed(steps.start(count))
    yield Figure("steps", count / seconds(lambda: one_pass(record)), "/s")


@measure("steps unprepared", beside_bare=True)
def one_run_unprepared(bench: Bench) -> Iterator[Figure]:
    """The same without PREPARED_STATEMENTS, as behind a pooler in transaction mode: steps per second."""
    count = bench.size(1500, 100)
    record = claimed(steps.start(count))
    with override_settings(DURABLE={**settings.DURABLE, "PREPARED_STATEMENTS": False}):
        yield Figure("steps, unprepared", count / seconds(lambda: one_pass(record)), "/s")


@measure("async steps", beside_bare=True)
def one_async_run(bench: Bench) -> Iterator[Figure]:
    """The same by a coroutine function: steps per second. They are called and committed in a thread."""
    count = bench.size(1500, 100)
    record = claimed(asteps.start(count))
    yield Figure("async steps", count / seconds(lambda: one_pass(record)), "/s")


@measure("async steps of async functions", beside_bare=True)
def one_async_run_of_async_functions(bench: Bench) -> Iterator[Figure]:
    """The same, with steps of coroutine functions: steps per second. The event loop commits them itself."""
    count = bench.size(1500, 100)
    record = claimed(acalls.start(count))
    yield Figure("async steps of async functions", count / seconds(lambda: one_pass(record)), "/s")


@measure("steps once")
def done_once(bench: Bench) -> Iterator[Figure]:
    """A step with `once=True` beside a plain one: microseconds of CPU of each, of this process and of PostgreSQL, and
    how often either is done in a second. Ten passes of each, in turn, so that others on the machine disturb both.
    """
    count, cpu = bench.size(300, 10), cpu_seconds(os.getpid())
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


COUNT = 100


@measure("join")
def join(bench: Bench) -> Iterator[Figure]:
    """Runs of a join of 100 branches of one step each, sync (threads) and async (tasks), by the worker's loop in this
    process: milliseconds a run.

    The steps do nothing, so branches only compete for the interpreter and for the run's row; what branches are for,
    waiting side by side, is not shown. A shift opens a connection for each thread of its sync joins, once.
    """
    times = bench.size(5, 1)
    for name, workflow in (("sync", parallel), ("async", aparallel)):
        workflow.start_many([(COUNT,)] * times)
        yield Figure(f"{name} join of {COUNT}", seconds(work_off) / times * 1000, "ms")


@measure("loop", beside_bare=True)
def loop(bench: Bench) -> Iterator[Figure]:
    """100,000 iterations of one step, in one pass: iterations per second, last tenth against first, most rows.

    Rows are those of the run's entries, counted at each tenth (that time is taken out). Shows no pass that begins in
    the middle, nor what dead rows cost once autovacuum comes.
    """
    count = bench.size(100_000, 500)
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


_ROUNDS = 5


@measure("guard")
def guard(bench: Bench) -> Iterator[Figure]:
    """What the guard adds to one statement of a step: µs, the least of five rounds.

    That is all that it adds to an operation. Statements between two operations cost more, and are told. A step without
    statements costs the same with each mode.
    """
    count = bench.size(200_000, 5_000)
    with override_settings(DURABLE={"GUARD": "log"}), Harness() as h:
        for name in ("off", "log"):
            wrapped = name == "log"
            run = h.start(lambda ctx, wrapped=wrapped: ctx.step("time", _microseconds, count, wrapped))
            yield Figure(f"guard {name}", h.run(run).output, "µs/statement")


def _microseconds(count: int, wrapped: bool) -> float:
    least = float("inf")
    for _ in range(_ROUNDS):
        began = perf_counter()
        if wrapped:
            for _ in range(count):
                statements._notice(_send, "SELECT 1", None, False, {})
        else:
            for _ in range(count):
                _send("SELECT 1", None, False, {})
        least = min(least, perf_counter() - began)
    return least / count * 1e6


def _send(_sql: str, _params: object, _many: bool, _context: dict[str, object]) -> None:
    """Send nothing."""
