"""Several runs at once in one worker process (`durable_worker --concurrency N`)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from durable.models import Run
from tests.benchmarks.measures.messages import latencies
from tests.benchmarks.measuring import Bench, Figure, measure, percentile
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.workers import elapsed, wait_for_all, wait_until, workers
from tests.benchmarks.workflows import holding, waiting


@measure("concurrency")
def concurrency(bench: Bench) -> Iterator[Figure]:
    """One process with one slot, with four and with eight: runs per second of a step that waits 20 ms.

    So does a step that asks another service. "runs, concurrency 4" has those of a step that does nothing.
    """
    for slots in (1, 4, 8):
        with workers(1, concurrency=slots):
            count = bench.size(100, 20) * slots
            waiting.start_many([()] * count)
            wait_for_all(waiting.name)
            yield Figure(f"runs that wait 20 ms, concurrency {slots}", count / elapsed(waiting.name), "/s")
            empty_tables()


@measure("messages, concurrency 4")
def messages_in_threads(bench: Bench) -> Iterator[Figure]:
    """As "messages", by an idle worker of four slots: milliseconds."""
    with workers(1, concurrency=4):
        measured = latencies(bench.size(200, 40))
        yield Figure("message, concurrency 4, median", median(measured) * 1000, "ms")
        yield Figure("message, concurrency 4, p99", percentile(measured, 0.99) * 1000, "ms")


@measure("messages beside a step")
def messages_beside_a_step(bench: Bench) -> Iterator[Figure]:
    """As "messages", with a worker of two slots of which a step that does not end holds one: milliseconds."""
    with workers(1, concurrency=2):
        handle = holding.start()
        wait_until(lambda: Run.objects.filter(pk=handle.id, state="running").exists(), "the step did not begin")
        measured = latencies(bench.size(200, 40))
        yield Figure("message beside a step, median", median(measured) * 1000, "ms")
        yield Figure("message beside a step, p99", percentile(measured, 0.99) * 1000, "ms")
