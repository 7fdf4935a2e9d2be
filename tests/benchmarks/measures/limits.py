"""What limits, shares and priorities cost, and how long a run waits behind another tenant's backlog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

from durable.models import Run
from tests.benchmarks.measuring import Bench, Figure, Skipped, measure, most_at_once, percentile
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.peers.children import figures
from tests.benchmarks.surroundings import SETTINGS
from tests.benchmarks.workers import PATIENCE, cpu_seconds, elapsed, wait_for_all, wait_until, workers
from tests.benchmarks.workflows import AT_ONCE, keyed, one_key, steps
from tests.support.postgres import OLDEST_POSTGRES, oldest_postgres

_KEYS = 1_000


@measure("limits")
def limits(bench: Bench) -> Iterator[Figure]:
    """One-step runs that each take a slot, beside as many without a limit, by two workers with four runs at once each:
    admissions per second from the first start to the last end, and the milliseconds of CPU of workers and PostgreSQL.

    One key: eight runs at once want four slots, so that there is always a line. 1,000 keys: of each key one run at a
    time. At last how many runs of the one key were in their steps at once, by the clock of the steps.
    """
    count = bench.size(5_000, 40)
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


_SINGLE = 20
_BEGUN = 50  # runs of the backlog that have ended when the other tenant begins


@measure("shares")
def shares(bench: Bench) -> Iterator[Figure]:
    """How long a single one-step run of one share waits for its start while another share has a backlog, by two workers
    with four runs at once each: milliseconds from its creation to its claim, the middle and the longest of 20, one
    after the other. The backlog is started by one call.

    Beside it runs per second of a backlog with a share and of one without, which is what the order costs, and how long
    the last run of the backlog without a share waited: a single run behind it waits for so long.
    """
    count = bench.size(15_000, 100)
    with workers(2, concurrency=4):
        empty_tables()
        steps.start_many([(1,)] * count)
        wait_for_all(steps.name)
        yield Figure("a backlog without shares", count / elapsed(steps.name), "/s")
        last = Run.objects.order_by("-started_at").only("created_at", "started_at")[0]
        yield Figure("wait behind a backlog without shares", _waited(last), "ms")
        empty_tables()
        steps.using(share="large").start_many([(1,)] * count)
        runs = Run.objects.filter(workflow=steps.name)
        wait_until(lambda: runs.filter(state="completed").count() >= _BEGUN, "no run of the backlog ends")
        waits: list[float] = []
        for _ in range(_SINGLE):
            single = steps.using(share="small").start(1)
            single.result(timeout=PATIENCE)
            waits.append(_waited(Run.objects.get(pk=single.id)))
        yield Figure("runs of the backlog left at the end", float(runs.filter(state="pending").count()), "runs")
        wait_for_all(steps.name)
        yield Figure("a backlog of one share", count / elapsed(steps.name), "/s")
        yield Figure("wait of another share's run", percentile(waits, 0.5), "ms")
        yield Figure("wait of another share's run, longest", max(waits), "ms")


def _waited(run: Run) -> float:
    assert run.started_at is not None
    return (run.started_at - run.created_at).total_seconds() * 1000


@measure("ranks on the oldest PostgreSQL")
def ranks(bench: Bench) -> Iterator[Figure]:
    """One-step runs by a `durable_worker`: runs per second of a backlog with a priority and of one without.

    The server is one of its own, of the oldest version that is supported, with its defaults: it compiles statements
    that it thinks expensive. Figures of two versions are not compared.
    """
    from project.servers import EmbeddedPostgres

    programs = oldest_postgres()
    if programs is None:
        raise Skipped(f"PostgreSQL {OLDEST_POSTGRES} is not installed")
    with EmbeddedPostgres(programs=programs, settings=SETTINGS) as server:
        yield from figures("tests.benchmarks.ranked", bench.size(2000, 40), environment={"DATABASE_URL": server.url})
