"""Metrics of workflow code: counted when the code is executed for the first time, and not when it is replayed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, Counter, Histogram

from durable import AsyncContext, Context, RollbackContext, get_run, runtime, workflow
from durable.contrib.metrics import is_live, live
from durable.models import Run
from durable.replay_check import RecordedRun, check_history
from durable.testing import Harness, SimulatedCrash
from tests.faults.passing import pass_once

ROOT: Final = Path(__file__).resolve().parents[2]
REGISTRY: Final = CollectorRegistry()
COUNTED: Final = live(Counter("shop_counted", "Lines of code that were executed", ["line"], registry=REGISTRY))
SECONDS: Final = live(Histogram("shop_seconds", "How long", registry=REGISTRY))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    raw: Any = object.__getattribute__(COUNTED, "_instrument")
    raw.clear()
    return iter([None])


def counted() -> dict[str, float]:
    [family] = [each for each in REGISTRY.collect() if each.name == "shop_counted"]
    return {each.labels["line"]: each.value for each in family.samples if each.name.endswith("_total")}


def undo(rollback: RollbackContext, output: Any) -> None:
    COUNTED.labels("undone").inc()


@workflow(name="tests.contrib.counting")
def counting(ctx: Context) -> None:
    COUNTED.labels("begin").inc()
    ctx.sleep("first", 60)
    COUNTED.labels("between").inc()
    ctx.sleep("second", 60)
    COUNTED.labels("end").inc()


@workflow(name="tests.contrib.counting_async")
async def counting_async(ctx: AsyncContext) -> None:
    COUNTED.labels("begin").inc()
    await ctx.sleep("first", 60)
    COUNTED.labels("end").inc()


@workflow(name="tests.contrib.counting_branches")
def counting_branches(ctx: Context) -> None:
    def branch(ctx: Context) -> None:
        COUNTED.labels("branch begins").inc()
        ctx.sleep("in the branch", 60)
        COUNTED.labels("branch ends").inc()

    ctx.join("both", {"a": branch, "b": branch})
    COUNTED.labels("joined").inc()


def test_each_line_of_a_workflow_counts_once_however_often_it_is_replayed() -> None:
    with Harness() as h:
        h.finish(counting.start())
        h.finish(counting_async.start())
    assert counted() == {"begin": 2, "between": 1, "end": 2}


def test_branches_count_each_for_itself() -> None:
    with Harness() as h:
        h.finish(counting_branches.start())
    assert counted() == {"branch begins": 2, "branch ends": 2, "joined": 1}


@pytest.mark.django_db(transaction=True)
def test_the_passes_of_workers_count_in_threads_and_event_loops_too() -> None:
    for each in (counting, counting_async, counting_branches):
        run = each.start()
        while get_run(run.id).state != "completed":
            Run.objects.filter(pk=run.id).update(wake_at=runtime.current().now())
            run.wake(end_sleeps=True)
            pass_once(run)
    assert counted() == {"begin": 2, "between": 1, "end": 2, "branch begins": 2, "branch ends": 2, "joined": 1}


def test_a_step_counts_each_of_its_attempts_and_a_handler_too() -> None:
    def fail() -> None:
        COUNTED.labels("attempt").inc()
        raise ConnectionError("503")

    def failing(ctx: Context) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("done", lambda: COUNTED.labels("done").inc(), rollback=undo)
        ctx.step("fail", fail, max_retries=2)

    with Harness() as h:
        assert h.finish(h.start(failing)).state == "failed"
    assert counted() == {"done": 1, "attempt": 3, "undone": 1}


def test_a_crash_before_the_next_commit_counts_twice_and_one_after_it_once() -> None:
    for when, expected in (("before", 2), ("after", 1)):
        COUNTED.labels("begin")
        before = counted()["begin"]
        with Harness() as h:
            run = counting.start()
            with pytest.raises(SimulatedCrash), h.crash_at(1, when):  # type: ignore[arg-type]  # one of the two words
                h.run(run)
            h.run(run)
        assert counted()["begin"] - before == expected, when


def test_a_step_that_waits_for_a_slot_has_a_record_so_that_code_before_it_counts_once() -> None:

    @workflow(name="tests.contrib.wants_slot")
    def wants_slot(ctx: Context) -> None:
        COUNTED.labels("before the slot").inc()
        ctx.step("use", print, limit="tests-contrib-slot")

    @workflow(name="tests.contrib.keeps_slot")
    def keeps_slot(ctx: Context) -> None:
        ctx.step("use", lambda: h.run(waiting), limit="tests-contrib-slot")

    with Harness() as h:
        runtime.current().store.declare_limit("tests-contrib-slot", 1)
        waiting = wants_slot.start()
        h.run(keeps_slot.start())
        assert h.peek(waiting).state == "sleeping"
        h.finish(waiting)
    assert counted() == {"before the slot": 1}


def test_code_after_which_the_pass_ends_without_a_record_counts_again() -> None:
    """A pause, and likewise a worker that stops, ends the pass at the next operation."""

    def pausing(ctx: Context) -> None:
        ctx.step("pause", lambda: get_run(ctx.run_id).pause())
        COUNTED.labels("after the request").inc()
        ctx.step("next", print)

    with Harness() as h:
        run = h.start(pausing)
        assert h.run(run).state == "paused"
        run.resume()
        h.finish(run)
    assert counted() == {"after the request": 2}


def test_a_replay_that_checks_code_counts_nothing() -> None:
    with Harness() as h:
        run = counting.start()
        h.finish(run)
        before = counted()
        store = runtime.current().store
        record = store.get(run.id)
        assert record is not None
        recorded = RecordedRun(run=record, entries=list(store.load(run.id)))
        assert h.assert_deterministic(counting) > 0  # a run of its own, which counts once
        assert counted() == {line: number + 1 for line, number in before.items()}
    after = counted()
    assert check_history(recorded).finding is None
    assert counted() == after


def test_code_outside_of_workflows_counts() -> None:
    assert is_live()
    COUNTED.labels("outside").inc(3)
    SECONDS.observe(0.5)
    assert counted() == {"outside": 3}


def test_instruments_of_opentelemetry_are_live_too() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("shop")
    refused, weight = live(meter.create_counter("refused")), live(meter.create_histogram("weight"))

    def measuring(ctx: Context) -> None:
        refused.add(1, {"reason": "sold out"})
        weight.record(2.5)
        ctx.sleep("rest", 60)

    with Harness() as h:
        h.finish(h.start(measuring))
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {each.name: each.data.data_points for each in data.resource_metrics[0].scope_metrics[0].metrics}
    [point] = metrics["refused"]
    assert (getattr(point, "value", None), dict(point.attributes or {})) == (1, {"reason": "sold out"})
    assert getattr(metrics["weight"][0], "count", None) == 1


def test_what_does_not_record_at_once_is_refused() -> None:
    with pytest.raises(AttributeError, match="is_live"):
        SECONDS.time()


@pytest.mark.slow
def test_the_guard_lets_counters_of_several_processes_write_their_files(tmp_path: Path) -> None:
    """With PROMETHEUS_MULTIPROC_DIR a counter opens a file at its first use: here between two operations."""
    program = """
import django
django.setup()
from prometheus_client import Counter
from durable.contrib.metrics import live
from durable.testing import Harness

counter = live(Counter("guarded", "Counted between two operations", ["line"]))

def body(ctx):
    counter.labels("a").inc()
    ctx.sleep("rest", 60)
    counter.labels("b").inc()

with Harness() as h:
    print(h.finish(h.start(body)).state)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}",
            "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["completed"], done.stderr
    assert list(tmp_path.glob("counter_*.db"))
