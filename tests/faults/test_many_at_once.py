"""Many of everything: what is bounded stays so, and no run starves. Rows, queries and bytes are counted, not seconds.

With `FULL_LOAD=1` the sizes are those of the promises: 100,000 messages to one run, a loop of 100,000 iterations. What
is asserted is the same.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durable import AsyncContext, Break, Context, Continue, workflow
from durable.core.journal import Journal
from durable.core.records import Batch, EntryKind, EntryRecord, EntryStatus, OutgoingMessage, RunRecord, RunState
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.models import Entry, QueueMessage, Run
from durable.store import store_for
from tests.faults.passing import claimed, pass_once
from tests.support.locks import sessions

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
FULL = os.environ.get("FULL_LOAD") == "1"
MESSAGES = 100_000 if FULL else 16_000
ITERATIONS = 100_000 if FULL else 3_000
ENTRIES = 50_000
MAX_GROWTH = 200_000  # bytes that a pass may gain between an early moment and its end, however long it lasts

_allocated: list[int] = []


@contextmanager
def tracing() -> Iterator[list[int]]:
    """What Python has allocated, at the moments at which a workflow asks for it with `sample`."""
    _allocated.clear()
    tracemalloc.start()
    try:
        yield _allocated
    finally:
        tracemalloc.stop()


def sample() -> None:
    if tracemalloc.is_tracing():
        _allocated.append(tracemalloc.get_traced_memory()[0])


def growth(allocated: list[int]) -> int:
    """From the first half, in which caches and what a loop keeps of its history are filled, to the end."""
    assert len(allocated) >= 30
    return allocated[-1] - max(allocated[: len(allocated) // 2])


def a_run(run_id: str, wake_at: datetime, **columns: object) -> RunRecord:
    return RunRecord(
        id=run_id,
        workflow="w",
        queue="default",
        input="[]",
        created_at=NOW,
        wake_at=wake_at,
        **columns,  # type: ignore[arg-type]
    )


def test_of_many_sleeping_runs_the_oldest_due_one_is_claimed_first() -> None:
    """10,000 sleep, 1,000 are due at once: batches come in the order of what has waited longest, each by the index."""
    store = store_for("default")
    sleeping = [a_run(f"s{n}", NOW + timedelta(days=1, seconds=n), state=RunState.SLEEPING) for n in range(10_000)]
    due = [a_run(f"d{n * 7919 % 1000:04}", NOW - timedelta(seconds=n * 7919 % 1000)) for n in range(1000)]
    with CaptureQueriesContext(connection) as queries:
        store.create(sleeping + due)
    assert len(queries) == 1
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run")
    order = []
    with CaptureQueriesContext(connection) as queries:
        for _ in range(100):
            batch = store.claim(queue="default", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10)
            order += [run.id for run in batch]
    assert len(queries) == 100
    assert order == [f"d{n:04}" for n in reversed(range(1000))]
    assert store.claim(queue="default", now=NOW, lease_until=NOW + LEASE, worker="w", limit=10) == []
    assert store.next_deadline(["default"], NOW) == NOW + timedelta(days=1)


@workflow(name="faults.load.drain")
def drain(ctx: Context, until: int) -> int:
    def some(c: Context, got: int) -> Break | Continue:
        bodies = [message.body for message in c.queue.next_batch("some", names=["numbers"], count=500)]
        if bodies != list(range(got, got + len(bodies))):
            raise RuntimeError(f"out of order after {got}")
        got += len(bodies)
        sample()
        return Break(got) if got >= until else Continue(got)

    total: int = ctx.loop("drain", some, state=0, history_prune_interval=5)
    return total


@pytest.mark.django_db(transaction=True)
def test_very_many_messages_to_one_run_are_received_in_order() -> None:
    handle = drain.start(MESSAGES)
    store = store_for("default")
    for first in range(0, MESSAGES, 2000):
        with CaptureQueriesContext(connection) as queries:
            store.send(
                [
                    OutgoingMessage(id=f"m{n}", to=handle.id, queue="numbers", body=str(n), sent_at=NOW)
                    for n in range(first, first + 2000)
                ]
            )
        assert len(queries) == 1
    counted = Counted()
    with connection.execute_wrapper(counted), tracing() as allocations:
        assert pass_once(handle).output == MESSAGES
    assert (
        counted.queries < MESSAGES // 500 * 3 + 10
    )  # a look and a receipt for each batch of 500, the loop's own commits
    assert growth(allocations) < MAX_GROWTH
    assert QueueMessage.objects.filter(run=handle.id, state="received").count() == MESSAGES
    assert Entry.objects.filter(run=handle.id).count() <= 11  # the loop, and iterations not pruned


class Counted:
    """Counts queries, and keeps none of them."""

    def __init__(self) -> None:
        self.queries = 0

    def __call__(self, execute: Any, *args: Any) -> Any:
        self.queries += 1
        return execute(*args)


@workflow(name="faults.load.long")
def long(ctx: Context, steps: int) -> int:
    for number in range(steps):
        ctx.step(f"{number}", int)
    ctx.sleep("rest", "1 day")
    return steps


def test_a_run_with_fifty_thousand_entries_replays_with_one_query() -> None:
    handle = long.start(ENTRIES)
    run = claimed(handle)
    store = store_for("default")
    for first in range(0, ENTRIES, 10_000):
        entries = [
            EntryRecord(
                f"{n}", EntryKind.STEP, n * 2, NOW, status=EntryStatus.COMPLETED, attempts=1, output="0",
                completed_at=NOW, finished_ordinal=n * 2 + 1,
            )
            for n in range(first, first + 10_000)
        ]  # fmt: skip
        store.commit(Batch(run_id=run.id, fence=run.fence, now=NOW, entries=entries))
    store.release([(run.id, run.fence)], NOW)
    run = claimed(handle)
    with CaptureQueriesContext(connection) as queries:
        outcome = execute_pass(run, store=store, eviction=Eviction())
    assert outcome.state == "sleeping"
    assert len(queries) == 2  # the history, the park
    assert Entry.objects.filter(run=handle.id).count() == ENTRIES + 1


@workflow(name="faults.load.wide")
def wide(ctx: Context, branches: int) -> int:
    def branch(number: int):  # type: ignore[no-untyped-def]  # a body
        return lambda c: c.step("work", lambda: number)

    results = ctx.join("wide", {f"b{number}": branch(number) for number in range(branches)})
    return sum(results.values())


@pytest.mark.django_db(transaction=True)
def test_a_join_of_five_hundred_branches_uses_a_few_threads_and_connections() -> None:
    handle, before = wide.start(500), sessions()
    outcome = pass_once(handle)
    opened = sessions() - before
    assert outcome.output == sum(range(500))
    assert len(opened) < 10
    assert Entry.objects.filter(run=handle.id).count() == 501


@workflow(name="faults.load.wide_async")
async def wide_async(ctx: AsyncContext, branches: int) -> int:
    def branch(number: int):  # type: ignore[no-untyped-def]  # a body
        async def body(c: AsyncContext) -> int:
            found: int = await c.step("work", lambda: number)
            return found

        return body

    results = await ctx.join("wide", {f"b{number}": branch(number) for number in range(branches)})
    return sum(results.values())


@pytest.mark.django_db(transaction=True)
def test_a_join_of_five_hundred_tasks_uses_one_connection() -> None:
    handle, before = wide_async.start(500), sessions()
    outcome = pass_once(handle)
    opened = sessions() - before
    assert outcome.output == sum(range(500))
    assert len(opened) < 2
    assert Entry.objects.filter(run=handle.id).count() == 501


@workflow(name="faults.load.big")
def big(ctx: Context, text: str) -> str:
    for number in range(5):
        text = ctx.step(f"{number}", lambda t: t[::-1], text)
    ctx.queue.send("echo", text)
    return str(ctx.queue.next("echo", names=["echo"]).body)


def test_payloads_of_a_mebibyte_are_kept_whole_and_one_byte_more_is_refused() -> None:
    limit = 1024 * 1024
    envelope = len('{"args":[""],"kwargs":{}}')
    text = "ab" * ((limit - envelope) // 2)
    handle = big.start(text)
    assert pass_once(handle).state == "completed"
    assert handle.output == text[::-1]
    with pytest.raises(Exception, match="limit is 1,048,576"):
        big.start(text + "abc")
    assert Run.objects.count() == 1


@workflow(name="faults.load.loop")
def looping(ctx: Context, until: int) -> int:
    def once(c: Context, n: int) -> Break | Continue:
        c.step("work", int, ephemeral=not FULL)
        if n % (until // 30) == 0:
            sample()
        return Break(n) if n == until else Continue(n + 1)

    value: int = ctx.loop("loop", once, state=0)
    return value


@pytest.mark.django_db(transaction=True)
def test_the_rows_and_the_memory_of_a_long_loop_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    take = Journal.take_batch

    def taking(self: Journal, *args: Any, **kwargs: Any) -> object:
        nonlocal most
        most = max(most, sum(1 for _ in self.entries()))
        return take(self, *args, **kwargs)

    monkeypatch.setattr(Journal, "take_batch", taking)
    handle = looping.start(ITERATIONS)
    with tracing() as allocations:
        assert pass_once(handle).output == ITERATIONS
    assert most <= 45  # two intervals of 20 and what is under way, in memory as in the table
    assert growth(allocations) < MAX_GROWTH
    assert Entry.objects.filter(run=handle.id).count() <= 45
