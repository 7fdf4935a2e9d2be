"""One run that starts many, and one that maps many."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from django.db import connection
from django.urls import reverse

from durable import Handle
from durable.core.records import ENDED
from durable.models import GroupTally, Run
from tests.benchmarks.measures.tables import Browser
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, empty_tables, one_pass
from tests.benchmarks.workers import PATIENCE, cpu_seconds, elapsed, forget_killed, wait_for_all, workers
from tests.benchmarks.workflows import fan_out, mapping, steps
from tests.e2e.workers import Workers

_COUNT = 10_000
_AT_ONCE = 50
_KILLED_EVERY = 1.0  # seconds


@measure("fan-out")
def fanned_out(bench: Bench) -> Iterator[Figure]:
    """A run that starts 10,000 runs of one step, by two workers, until the last has finished: runs per second.

    The parent does not wait for its children; what joining them costs is measured by "map".
    """
    count = bench.size(_COUNT, 100)
    with workers(2):
        fan_out.start(count).result(timeout=600)
        wait_for_all(steps.name)
        yield Figure(f"fan-out of {count:,}", count / elapsed(steps.name), "/s")


@measure("map")
def mapped(bench: Bench) -> Iterator[Figure]:
    """10,000 children of one step of one map by two workers, beside as many runs of one step that nobody waits for.

    Runs per second, and the milliseconds of CPU that workers and PostgreSQL take for each. Both are taken from the
    start to the end of the last run; that of a map is the end of the parent, which has read all outputs. Once all at
    once, once 50 at once. Then how often the row of the parent was written, by a trigger, and what the server takes for
    the pages that show the children.
    """
    count = bench.size(_COUNT, 100)
    maps = {"a map": None, f"a map, {_AT_ONCE} at once": _AT_ONCE}
    with workers(2) as command, _counted_writes():
        cpu = cpu_seconds(command.pid)
        rate, cost = _taken(cpu, count, partial(_independent, count))
        yield Figure("one-step runs beside a map", rate, "/s")
        yield Figure("CPU of one-step runs beside a map", cost, "ms/run")
        for name, at_once in maps.items():
            empty_tables()
            rate, cost = _taken(cpu, count, partial(_map, count, at_once))
            yield Figure(f"children of {name}", rate, "/s")
            yield Figure(f"CPU of children of {name}", cost, "ms/run")
            yield Figure(f"writes of the parent of {name}", _writes(), "writes")
        yield from _pages(bench)


@measure("map, concurrency")
def mapped_in_threads(bench: Bench) -> Iterator[Figure]:
    """The children of a map by one worker of four slots, beside independent runs of the same worker: runs per second.

    Once all at once, once 50 at once: then each end of a child has to begin the next one.
    """
    count = bench.size(2000, 60)
    with workers(1, concurrency=4) as command:
        cpu = cpu_seconds(command.pid)
        rate, _ = _taken(cpu, count, partial(_independent, count))
        yield Figure("one-step runs beside a map, concurrency 4", rate, "/s")
        for name, at_once in {
            "a map, concurrency 4": None,
            f"a map, concurrency 4, {_AT_ONCE} at once": _AT_ONCE,
        }.items():
            empty_tables()
            rate, _ = _taken(cpu, count, partial(_map, count, at_once))
            yield Figure(f"children of {name}", rate, "/s")


@measure("map, memory")
def memory(bench: Bench) -> Iterator[Figure]:
    """What a pass of a parent of 10,000 children has in memory at most, by tracemalloc.

    One pass starts the children, another one reads how they have ended. They are measured in this process, without
    workers. A statement ends the children.
    """
    count = _COUNT if not bench.short else 3000
    handle = mapping.start(count)
    yield Figure("memory of a map's start", _most_memory(handle), "MB")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durable_run SET state = 'completed', wake_at = NULL, output = '1', finished_at = now() "
            "WHERE parent_id = %s",
            [handle.id],
        )
    yield Figure("memory of a map's end", _most_memory(handle), "MB")
    assert handle.output == count


@measure("map, killed")
def killed(bench: Bench) -> Iterator[Figure]:
    """Children per second of the same map while one of the two workers is killed with SIGKILL every second.

    Another worker is started in its place. None is killed before a child has ended since the last one was. What it
    takes is mostly the start of Python, and at the end the lease of what was killed last.
    """
    count = bench.size(_COUNT, 40)
    dice = random.Random(3)  # not for secrets
    began = time.monotonic()
    handle = mapping.start(count)
    with Workers(
        2, dict(os.environ), Path(os.devnull), settings="tests.benchmarks.settings", queue="benchmarks"
    ) as two:
        ended = 0
        while handle.state not in ENDED:
            assert time.monotonic() - began < PATIENCE * 4, f"{handle.summary} after {two.kills} kills"
            time.sleep(_KILLED_EVERY)
            before, ended = ended, GroupTally.objects.values_list("completed", flat=True).first() or 0
            if ended > before:
                two.kill_one(dice)
    forget_killed()
    yield Figure("workers killed beside a map", two.kills, "workers")
    yield Figure("children of a map, a worker killed every second", count / (time.monotonic() - began), "/s")
    assert handle.output == count
    assert Run.objects.filter(parent=handle.id, state="completed").count() == count


def _independent(count: int) -> None:
    steps.start_many([(1,)] * count)
    wait_for_all(steps.name)


def _map(count: int, at_once: int | None) -> None:
    mapping.start(count, at_once)
    wait_for_all(mapping.name)


def _taken(cpu: Callable[[], float], count: int, work: Callable[[], None]) -> tuple[float, float]:
    """Runs per second, and milliseconds of CPU for each."""
    before = cpu()
    work()
    rate = count / elapsed(steps.name, mapping.name)
    return rate, (cpu() - before) / count * 1000


def _most_memory(handle: Handle) -> float:
    record = claimed(handle)
    tracemalloc.start()
    try:
        one_pass(record)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@contextmanager
def _counted_writes() -> Iterator[None]:
    """Inside, a trigger counts the writes of each run that maps."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE benchmark_writes (run_id text)")
        cursor.execute(
            "CREATE FUNCTION benchmark_written() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO benchmark_writes VALUES (NEW.id); RETURN NULL; END'"
        )
        cursor.execute(
            "CREATE TRIGGER benchmark_written AFTER UPDATE ON durable_run FOR EACH ROW "
            f"WHEN (NEW.workflow = '{mapping.name}') EXECUTE FUNCTION benchmark_written()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER benchmark_written ON durable_run")
            cursor.execute("DROP FUNCTION benchmark_written")
            cursor.execute("DROP TABLE benchmark_writes")


def _writes() -> int:
    """How often the rows of parents were written since the last question."""
    with connection.cursor() as cursor:
        cursor.execute("WITH gone AS (DELETE FROM benchmark_writes RETURNING 1) SELECT count(*) FROM gone")
        [(count,)] = cursor.fetchall()
    return int(count)


def _pages(bench: Bench) -> Iterator[Figure]:
    """The pages that show a map's children, which are in the tables."""
    parent = Run.objects.get(workflow=mapping.name).pk
    lists, page = reverse("admin:durable_run_changelist"), reverse("admin:durable_run_change", args=[parent])
    addresses = {
        "list with a map's children": f"{lists}?children=true",
        "page of a map's parent": page,
        "children on the page of a map's parent": f"{page}?part=children",
    }
    browser = Browser()
    for name, address in addresses.items():
        times = [seconds(partial(browser.get, address)) for _ in range(bench.size(32, 5))]
        yield Figure(name, median(times[2:]) * 1000, "ms")
