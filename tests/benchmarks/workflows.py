"""The workflows that are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from durable import AsyncContext, Break, Context, Continue, CriticalError, Limit, current_step, workflow

RESULT = "x" * 30
#: How many slots the limit of `one_key` allows.
AT_ONCE = 4
#: What the loop calls at each tenth, in its own process: the iteration.
watch: list[Callable[[int], None]] = []


def result() -> str:
    """What every step returns: 30 bytes."""
    return RESULT


@workflow(name="benchmarks.steps")
def steps(ctx: Context, count: int, then_sleep: bool = False) -> int:
    """So many steps, and perhaps a long sleep, so that the run can be replayed."""
    for number in range(count):
        ctx.step(f"step-{number}", result)
    if then_sleep:
        ctx.sleep("sleep", "30 days")
    return count


@workflow(name="benchmarks.steps_once")
def steps_once(ctx: Context, count: int) -> int:
    """So many steps, each committed before its call too."""
    for number in range(count):
        ctx.step(f"step-{number}", result, once=True)
    return count


def refuse() -> None:
    """What a step does that fails for good."""
    raise CriticalError("refused")


@workflow(name="benchmarks.failing")
def failing(ctx: Context) -> None:
    """One step that fails."""
    ctx.step("refuse", refuse)


def wait_for_others() -> str:
    """A step that calls another service: it waits for 20 ms."""
    time.sleep(0.02)
    return RESULT


@workflow(name="benchmarks.waiting")
def waiting(ctx: Context) -> None:
    """One step that waits for others."""
    ctx.step("wait", wait_for_others)


def until_evicted() -> None:
    """A step that goes on until its worker is to stop."""
    while not current_step().is_evicted():
        time.sleep(0.05)


@workflow(name="benchmarks.holding")
def holding(ctx: Context) -> None:
    """One step that holds its worker."""
    ctx.step("hold", until_evicted, timeout=0)


@workflow(name="benchmarks.asteps")
async def asteps(ctx: AsyncContext, count: int, then_sleep: bool = False) -> int:
    """The same, awaited."""
    for number in range(count):
        await ctx.step(f"step-{number}", result)
    if then_sleep:
        await ctx.sleep("sleep", "30 days")
    return count


async def aresult() -> str:
    """The same, awaited."""
    return RESULT


@workflow(name="benchmarks.acalls")
async def acalls(ctx: AsyncContext, count: int, is_joined: bool = False) -> int:
    """So many steps of an async function, one after the other or in branches of a join."""

    async def branch(c: AsyncContext) -> str:
        value: str = await c.step("step", aresult)
        return value

    if is_joined:
        return len(await ctx.join("all", {f"branch-{number}": branch for number in range(count)}))
    for number in range(count):
        await ctx.step(f"step-{number}", aresult)
    return count


@workflow(name="benchmarks.counting")
def counting(ctx: Context, until: int) -> int:
    """A loop of one step an iteration."""

    def once(c: Context, number: int) -> Break | Continue:
        c.step("step", result)
        if watch and number % (until // 10) == 0:
            watch[0](number)  # durable: allow[W109] the benchmark counts rows there
        return Break(number) if number == until else Continue(number + 1)

    value: int = ctx.loop("count", once, state=0)
    return value


@workflow(name="benchmarks.parallel")
def parallel(ctx: Context, count: int) -> int:
    """A join of branches of one step."""
    return len(ctx.join("all", {f"branch-{number}": lambda c: c.step("step", result) for number in range(count)}))


@workflow(name="benchmarks.querying")
def querying(ctx: Context, count: int) -> int:
    """The same, with steps that look into the database."""
    return len(ctx.join("all", {f"branch-{number}": lambda c: c.step("step", query) for number in range(count)}))


def query() -> int:
    """One statement."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        [(value,)] = cursor.fetchall()
    return int(value)


async def aquery() -> int:
    """The same, awaited."""
    return await sync_to_async(query)()


@workflow(name="benchmarks.aquerying")
async def aquerying(ctx: AsyncContext, count: int, are_plain: bool) -> int:
    """A join of branches whose steps look into the database, with a plain function or with an `async def`."""

    async def branch(c: AsyncContext) -> int:
        value: int = await c.step("step", query if are_plain else aquery)
        return value

    return len(await ctx.join("all", {f"branch-{number}": branch for number in range(count)}))


@workflow(name="benchmarks.aparallel")
async def aparallel(ctx: AsyncContext, count: int) -> int:
    """The same, awaited."""

    async def branch(c: AsyncContext) -> str:
        value: str = await c.step("step", result)
        return value

    return len(await ctx.join("all", {f"branch-{number}": branch for number in range(count)}))


@workflow(name="benchmarks.fan_out")
def fan_out(ctx: Context, count: int) -> int:
    """Starts so many runs of one step, a thousand in a step."""
    for first in range(0, count, 1000):
        ctx.step(f"start-{first}", start_children, first, min(count, first + 1000), timeout=120)
    return count


def start_children(first: int, end: int) -> int:
    """One run of one step for each number; named, so that a repetition starts nothing."""
    parent = current_step().run_id
    steps.start_many([(1,) for _ in range(first, end)], ids=[f"{parent}-{number}" for number in range(first, end)])
    return end - first


@workflow(name="benchmarks.mapping")
def mapping(ctx: Context, count: int, at_once: int | None = None) -> int:
    """Maps so many runs of one step; returns the sum of their outputs."""
    return sum(ctx.map("children", steps, [(1,)] * count, at_once=at_once).outputs)


@workflow(name="benchmarks.receiving")
def receiving(ctx: Context) -> float:
    """How long a message was under way, in seconds: its body is the time at which it was sent."""
    message = ctx.queue.next("wait", names=["news"])
    return time.time() - float(message.body)


@workflow(name="benchmarks.sleeping")
def sleeping(ctx: Context, moment: datetime) -> float:
    """How late it woke up, in seconds."""
    ctx.sleep_until("sleep", moment)
    return (timezone.now() - moment).total_seconds()


@workflow(name="benchmarks.ticking")
def ticking(ctx: Context) -> float:
    """The time at which the code of a schedule's run begins."""
    return time.time()


@workflow(name="benchmarks.noting")
def noting(ctx: Context) -> str:
    """A step with a function that is called and nothing else; for warming up."""
    value: str = ctx.step("note", result)
    return value


@workflow(name="benchmarks.one_key", limit=Limit("benchmarks-one", at_once=AT_ONCE))
def one_key(ctx: Context) -> list[float]:
    """One step under a limit without keys; from when to when it worked, by the clock."""
    begins: float = ctx.step("step", time.time)
    return [begins, time.time()]


@workflow(name="benchmarks.slotted")
def slotted(ctx: Context) -> str:
    """A step that holds a slot while its function runs."""
    found: str = ctx.step("step", result, limit="benchmarks-step")
    return found


@workflow(name="benchmarks.rated")
def rated(ctx: Context) -> str:
    """A step that begins at its moment in a rate."""
    found: str = ctx.step("step", result, rate="benchmarks-rate")
    return found


@workflow(name="benchmarks.keyed", limit=Limit("benchmarks-keys", at_once=1, key=lambda key: key))
def keyed(ctx: Context, _key: str) -> None:
    """One step, for one run of each key at a time."""
    ctx.step("step", result)
