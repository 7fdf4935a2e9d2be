"""How long one tenant's run waits behind another tenant's backlog."""

from __future__ import annotations

from collections.abc import Iterator

from durable.models import Run
from tests.benchmarks.measuring import Bench, Figure, measure, percentile
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import PATIENCE, elapsed, wait_for_all, wait_until, workers
from tests.benchmarks.workflows import steps

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
    count = bench.size(15_000, 300)
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
