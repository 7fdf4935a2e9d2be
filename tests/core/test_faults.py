"""Known faults of the engine whose semantics this one takes over, each with the test that it would fail.

The number is that of the fault in the design. Faults 3 to 7, 10, 14 and 16 are in the tests of their subjects.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from durable import Break, CriticalError, RollbackError
from durable.core.records import Batch, Committed
from durable.errors import JoinError
from durable.testing import Harness, SimulatedCrash
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


@dataclass
class Point:
    x: int

    def doubled(self) -> int:
        return self.x * 2


@pytest.mark.parametrize("error", [CriticalError("x"), RollbackError("x"), ValueError("x")])
@pytest.mark.parametrize("in_block", [False, True])
def test_1_a_caught_failure_is_not_computed_again(
    h: Harness, flavour: Flavour, error: Exception, in_block: bool
) -> None:
    """Fault 1: a terminal failure that was caught ran again on every replay, and could then succeed."""
    calls: list[int] = []

    def fail_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return "succeeded after all"

    async def body(ctx: Any) -> Any:
        return await ctx.step("a", fail_once, max_retries=0)

    async def ship(ctx: Any) -> Any:
        if in_block:
            caught = await ctx.try_block("block", body, catch=["step", "rollback"])
        else:
            kinds = ["critical", "exhausted", "rollback"]
            caught = await ctx.try_step("a", fail_once, catch=kinds, max_retries=0)
        await ctx.sleep("rest", 60)
        return caught.ok

    assert h.finish(h.start(flavour(ship))).output is False
    assert calls == [1]


def test_1_a_caught_timeout_is_not_computed_again(h: Harness, flavour: Flavour) -> None:
    """Fault 1, for a timeout."""
    calls: list[int] = []

    async def slow_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.sleep(3600)

    async def ship(ctx: Any) -> Any:
        caught = await ctx.try_step("a", slow_once, timeout=0.02)
        await ctx.sleep("rest", 60)
        return caught.failure.kind

    assert h.finish(h.start(flavour(ship))).output == "timeout"
    assert calls == [1]


async def one_step(ctx: Any) -> Any:
    await ctx.step("a", int)
    return Break(1)


async def with_loop(ctx: Any) -> Any:
    await ctx.loop("inner", one_step)


async def with_join(ctx: Any) -> Any:
    await ctx.join("inner", {"a": one_step})


async def with_race(ctx: Any) -> Any:
    await ctx.race("inner", {"a": one_step})


@pytest.mark.parametrize("inner", [with_loop, with_join, with_race])
@pytest.mark.parametrize("outer", ["block", "branch", "iteration", "root"])
def test_2_what_is_completed_inside_a_scope_is_visited(h: Harness, flavour: Flavour, inner: Any, outer: str) -> None:
    """Fault 2: a completed join, race or loop inside a block, branch or iteration made the next replay fail."""

    async def body(ctx: Any) -> Any:
        await inner(ctx)
        await ctx.sleep("rest", 60)
        return Break("done")

    async def ship(ctx: Any) -> Any:
        if outer == "block":
            await ctx.try_block("outer", body)
        elif outer == "branch":
            await ctx.join("outer", {"b": body})
        elif outer == "iteration":
            await ctx.loop("outer", body)
        else:
            await inner(ctx)
        await ctx.sleep("rest", 60)
        return "done"

    assert h.finish(h.start(flavour(ship))).output == "done"


def test_8_names_cannot_look_like_paths(h: Harness, flavour: Flavour) -> None:
    """Fault 8: a step `a/b` and a step `b` in block `a` shared a location, and so a result."""

    async def body(ctx: Any) -> Any:
        return await ctx.step("b", lambda: "inside")

    async def iteration(ctx: Any) -> Any:
        return Break(await ctx.step("x", lambda: "iteration"))

    async def ship(ctx: Any) -> Any:
        outside = await ctx.step("a/b", lambda: "outside")
        inside = (await ctx.try_block("a", body)).value
        sneaky = await ctx.step("loop/~0/x", lambda: "sneaky")
        found = await ctx.loop("loop", iteration)
        escaped = await ctx.step("a%2Fb", lambda: "escaped")
        await ctx.queue.send("q", 1)
        sent = await ctx.step("send~0", lambda: "named like a send")
        await ctx.sleep("rest", 60)
        return [outside, inside, sneaky, found, escaped, sent]

    run = h.start(flavour(ship))
    expected = ["outside", "inside", "sneaky", "iteration", "escaped", "named like a send"]
    assert h.finish(run).output == expected
    locations = [each.location for each in run.history()]
    assert len(set(locations)) == len(locations) == 9


def test_9_an_entry_that_the_code_does_not_visit_is_noticed_at_the_root(h: Harness, flavour: Flavour) -> None:
    """Fault 9: it was not, at the root."""
    steps = ["a", "b"]

    async def ship(ctx: Any) -> Any:
        for name in steps:
            await ctx.step(name, int)
        if len(steps) > 1:
            await ctx.sleep("rest", 60)

    run = h.start(flavour(ship))
    h.run(run)
    steps.pop()
    check_failed(h.run(run), "HistoryDivergedError", 'the code ended, but the history goes on with "b", "rest"')


def test_what_the_code_does_not_visit_is_listed_in_the_order_of_the_records(h: Harness, flavour: Flavour) -> None:
    is_old = [True]

    async def ship(ctx: Any) -> Any:
        if not is_old:
            return await ctx.step("new", int)
        await ctx.step("z", int)

        async def block(c: Any) -> None:
            await c.step("y", int)

        await ctx.try_block("m", block)
        await ctx.step("b", int)
        await ctx.sleep("a", 60)
        return None

    run = h.start(flavour(ship))
    h.run(run)
    is_old.clear()
    assert 'but the history goes on with "z", "m", "b"' in error_of(h.run(run)).message


class Gate:
    """A store whose first commit with an entry waits until something else was noted meanwhile."""

    def __init__(self, inner: Any, location: str) -> None:
        self.inner = inner
        self.location = location
        self.is_writing = threading.Event()
        self.may_end = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, batch: Batch) -> Committed:
        if any(entry.location == self.location for entry in batch.entries) and not self.is_writing.is_set():
            self.is_writing.set()
            assert self.may_end.wait(120)
        committed: Committed = self.inner.commit(batch)
        return committed


def test_11_what_changes_while_a_commit_is_written_is_not_taken_for_written(h: Harness) -> None:
    """Fault 11: a flush marked as clean what changed while it wrote, so records of parallel branches were lost."""
    gate = Gate(h._store, "join/writer/a")

    def writer(ctx: Any) -> Any:
        return ctx.step("a", lambda: "written")

    def noting(ctx: Any) -> Any:
        ctx.step("wait until it is written", lambda: gate.is_writing.wait(120), ephemeral=True)
        return ctx.step("noted meanwhile", meanwhile, ephemeral=True)

    def meanwhile() -> str:
        gate.may_end.set()
        return "noted"

    def ship(ctx: Any) -> Any:
        return ctx.join("join", {"writer": writer, "noting": noting})

    run = h.start(ship, id="run")
    threaded_pass(h, "run", store=gate)
    assert run.output == {"writer": "written", "noting": "noted"}
    statuses = {each.location: each.status for each in run.history()}
    assert statuses == dict.fromkeys(
        ["join", "join/writer/a", "join/noting/wait until it is written", "join/noting/noted meanwhile"], "completed"
    )
    assert {each["status"] for each in run.history()[0].data["branches"].values()} == {"completed"}


def test_11_many_branches_at_once_leave_a_history_that_loads(h: Harness, flavour: Flavour) -> None:
    """Fault 11: with parallel branches the run might never load again."""

    def branch(number: int) -> Any:
        async def body(ctx: Any) -> Any:
            async def iteration(ctx: Any, n: int) -> Any:
                await ctx.step("kept", lambda: n, ephemeral=bool(n % 2))
                return Break(n) if n == 9 else None

            for n in range(10):
                await ctx.step(f"a{n}", lambda: number, ephemeral=bool(n % 2))
            await ctx.sleep("rest", 60)
            return number

        return body

    async def ship(ctx: Any) -> Any:
        found = await ctx.join("join", {str(number): branch(number) for number in range(12)})
        return sum(found.values())

    run = h.start(flavour(ship), id="run")
    assert threaded_pass(h, "run").state == "sleeping"
    assert len(run.history()) == 1 + 12 * 11
    h.advance(60)
    threaded_pass(h, "run")
    assert run.output == 66


def test_12_an_attempt_that_kills_the_process_is_counted(h: Harness, flavour: Flavour) -> None:
    """Fault 12: it was not, so that a step could crash workers for ever."""
    calls: list[int] = []

    def kill() -> None:
        calls.append(1)
        raise SimulatedCrash

    async def ship(ctx: Any) -> Any:
        return (await ctx.try_step("a", kill, max_retries=2)).failure.error.type

    run = h.start(flavour(ship))
    for _ in range(20):
        with suppress(SimulatedCrash):
            h.run(run)
        h.advance(60)
        if run.state == "completed":
            break
    assert run.output == "WorkerDied"
    assert len(calls) == 4, "the first one could not be known, the three of the step's own were counted"
    assert run.history()[0].attempts == 3


def test_12_code_that_kills_the_process_between_steps_stops_at_last(h: Harness, flavour: Flavour) -> None:
    """Fault 12, outside of a step."""
    passes: list[int] = []

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", int)
        passes.append(1)
        raise SimulatedCrash

    run = h.start(flavour(ship))
    for _ in range(20):
        with suppress(SimulatedCrash):
            if h.run(run).state == "failed":
                break
    check_failed(run, "RunCrashedError")
    assert 5 <= len(passes) <= 7
    assert h._store._runs[run.id].crashes == 5, "operators see how many workers it crashed"
    run.recover()
    assert h._store._runs[run.id].crashes == 0


def test_13_a_value_is_the_same_the_first_time_and_on_replay(h: Harness, flavour: Flavour) -> None:
    """Fault 13: an instance came back as a plain object, an ephemeral output as later code had mutated it."""
    seen: list[Any] = []
    kept: list[int] = [1]

    async def branch(ctx: Any) -> Any:
        return (1, Point(2))

    async def ship(ctx: Any) -> Any:
        point = await ctx.step("point", lambda: Point(2))
        listed = await ctx.step("list", lambda: kept, ephemeral=True)
        joined = await ctx.join("join", {"a": branch})
        block = await ctx.try_block("block", branch)
        seen.append((point, point.doubled(), listed[:], joined, block.value[1].x))
        listed.append(2)
        kept.append(3)
        await ctx.sleep("rest", 60)

    h.finish(h.start(flavour(ship)))
    assert seen[0] == seen[1] == (Point(2), 4, [1], {"a": (1, Point(2))}, 2)


@pytest.mark.parametrize("kind", ["join", "race"])
def test_15_a_wait_for_any_message_is_not_forgotten(h: Harness, flavour: Flavour, kind: str) -> None:
    """Fault 15: it was, beside a wait for a named one."""

    def waiting(*names: str) -> Any:
        async def body(ctx: Any) -> Any:
            return (await ctx.queue.next("wait", names)).body

        return body

    async def ship(ctx: Any) -> Any:
        found = await getattr(ctx, kind)("fork", {"named": waiting("x"), "any": waiting()})
        return found if kind == "join" else found.value

    run = h.start(flavour(ship))
    h.run(run)
    h.send(run, "another", 1)
    assert h.run_due() == 1
    if kind == "join":
        h.send(run, "x", 2)
        h.settle()
    assert run.output == ({"named": 2, "any": 1} if kind == "join" else 1)


def test_a_join_error_in_a_block_is_caught_as_one(h: Harness, flavour: Flavour) -> None:
    """Faults 1 and 2 together: a failed join that was caught is history."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise CriticalError("x")

    async def branch(ctx: Any) -> Any:
        await ctx.step("a", fail)

    async def ship(ctx: Any) -> Any:
        try:
            await ctx.join("join", {"a": branch})
        except JoinError as error:
            await ctx.sleep("rest", 60)
            return error.errors["a"].message

    assert h.finish(h.start(flavour(ship))).output == "x"
    assert calls == [1]
