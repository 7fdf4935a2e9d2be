"""`ctx.loop`: state, end, what an iteration may return, pruning, and a cost that does not grow."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from durable import Break, Continue
from durable.core.records import Batch, Committed
from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


def locations(run: Any) -> list[str]:
    return [each.location for each in run.history()]


def counting(until: int, **options: Any) -> Any:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, n: int) -> Any:
            await ctx.step("a", lambda: n)
            return Break(n) if n == until else Continue(n + 1)

        return await ctx.loop("loop", body, state=0, **options)

    return ship


def test_an_iteration_may_say_the_types_of_its_end() -> None:
    assert Break[int](3) == Break(3)
    assert Continue[str]("on") == Continue("on")
    for end in (Break(3), Continue("on")):
        assert pickle.loads(pickle.dumps(end)) == end
        with pytest.raises(AttributeError):
            end.value = 4  # type: ignore[union-attr,misc]  # frozen


def test_goes_on_with_its_state_until_it_breaks(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, state: dict[str, int]) -> Any:
            state["sum"] += await ctx.step("a", lambda: state["n"])
            await ctx.sleep("rest", 60)
            state["n"] += 1
            return Continue(state) if state["n"] < 4 else Break(state["sum"])

        found = await ctx.loop("loop", body, state={"n": 1, "sum": 0})
        await ctx.sleep("rest", 60)
        return found

    run = h.start(flavour(ship))
    assert h.finish(run).output == 6
    entry = run.history()[0]
    assert (entry.kind, entry.status, entry.data["output"], entry.data["iteration"]) == ("loop", "completed", 6, 2)


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, state: list[int]) -> Any:
            found = await ctx.step("a", lambda: len(state))
            if found % 2:
                await ctx.sleep("rest", 60)
            return Continue([*state, found]) if found < 6 else Break(state)

        return await ctx.loop("loop", body, state=[], history_prune_interval=3, history_size=1)

    h.crash_everywhere(flavour(ship))


def test_without_a_state_a_body_may_return_none(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any) -> Any:
            message = await ctx.queue.next("next", names=[])
            if message.body is None:
                return Break("end")
            return Continue() if message.body else None

        return await ctx.loop("loop", body)

    run = h.start(flavour(ship))
    for body in (0, 1, 0, None):
        h.send(run, "q", body)
    assert h.run(run).output == "end"


@pytest.mark.parametrize("returned", [None, 5, {"n": 1}])
def test_an_iteration_with_a_state_has_to_return_one_of_the_two(h: Harness, flavour: Flavour, returned: Any) -> None:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, state: int) -> Any:
            return returned

        await ctx.loop("loop", body, state=0)

    error = h.run(h.start(flavour(ship))).error
    assert error is not None
    assert error.type == "TypeError"
    found = "nothing" if returned is None else repr(returned)
    assert f'iteration 0 of loop "loop" returned {found}; return Continue(state) to go on or Break' in error.message


def test_a_state_may_become_none(h: Harness, flavour: Flavour) -> None:
    seen = []

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, state: Any) -> Any:
            seen.append(state)
            return Continue() if state else Break("none")

        return await ctx.loop("loop", body, state=1)

    assert h.run(h.start(flavour(ship))).output == "none"
    assert seen == [1, None]


def test_a_state_that_the_codec_refuses_stops_the_run(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any, state: Any) -> Any:
            return Continue(object())

        await ctx.loop("loop", body, state=1)

    check_failed(h.run(h.start(flavour(ship))), "PayloadError", 'the state of loop "loop"')


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"history_prune_interval": 0}, "history_prune_interval must be a whole number of at least 1"),
        ({"history_prune_interval": 1.5}, "history_prune_interval must be a whole number"),
        ({"history_size": -1}, "history_size must be a whole number of at least 0"),
    ],
)
def test_says_what_is_wrong_with_a_call(h: Harness, flavour: Flavour, options: dict[str, Any], text: str) -> None:
    assert text in error_of(h.run(h.start(flavour(counting(3, **options))))).message


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, range(30, 50)),
        ({"history_prune_interval": 7}, range(43, 50)),
        ({"history_prune_interval": 7, "history_size": 3}, range(47, 50)),
        ({"history_prune_interval": 7, "history_size": 0}, range(0)),
        ({"history_size": 100}, range(50)),
        ({"history_prune_interval": 1}, range(49, 50)),
    ],
)
def test_forgets_old_iterations(h: Harness, flavour: Flavour, options: dict[str, Any], kept: range) -> None:
    run = h.start(flavour(counting(49, **options)))
    assert h.run(run).output == 49
    assert locations(run) == ["loop", *(f"loop/~{n}/a" for n in kept)]


def test_between_prunings_the_history_is_bounded(h: Harness, flavour: Flavour) -> None:
    most = 0
    commit = h._store.commit

    def watching(batch: Batch) -> Committed:
        nonlocal most
        committed = commit(batch)
        most = max(most, len(h._store.history("run")))
        return committed

    h._store.commit = watching  # type: ignore[method-assign]
    h.run(h.start(flavour(counting(100, history_prune_interval=5, history_size=2)), id="run"))
    assert most == 1 + 2 + 5


def test_keeps_completed_steps_with_a_rollback_handler(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")

        async def body(ctx: Any, n: int) -> Any:
            await ctx.step("charge", lambda: n, rollback=undoing.undo)
            await ctx.step("other", lambda: n)
            return Break(n) if n == 9 else Continue(n + 1)

        await ctx.loop("loop", body, state=0, history_prune_interval=2, history_size=0)
        raise ValueError("late")

    run = h.start(flavour(ship))
    assert h.finish(run).state == "failed"
    assert undoing.undone == list(range(9, -1, -1))
    assert locations(run)[2:] == [f"loop/~{n}/charge" for n in range(10)]


@pytest.mark.slow
def test_thousands_of_iterations_cost_as_much_each_as_the_first_ones(h: Harness) -> None:
    """Counted, not timed: entries per commit, and commits per iteration."""
    sizes: list[int] = []
    commit = h._store.commit

    def watching(batch: Batch) -> Committed:
        sizes.append(len(batch.entries) + len(batch.deleted))
        return commit(batch)

    h._store.commit = watching  # type: ignore[method-assign]

    def ship(ctx: Any) -> Any:
        def body(ctx: Any, n: int) -> Any:
            ctx.step("a", int)
            return Break(n) if n == 2_000 else Continue(n + 1)

        return ctx.loop("loop", body, state=0)

    run = h.start(ship)
    assert h.run(run).output == 2_000
    tenth = len(sizes) // 10
    assert abs(sum(sizes[:tenth]) - sum(sizes[-tenth:])) <= 25
    assert max(sizes) <= 23
    assert len(sizes) <= 2_001 * 1.06
    assert len(run.history()) <= 41


def test_a_loop_inside_a_loop(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        async def outer(ctx: Any, total: int) -> Any:
            async def inner(ctx: Any, n: int) -> Any:
                await ctx.step("a", lambda: n)
                await ctx.sleep("rest", 60)
                return Continue(n + 1) if n < 2 else Break(n)

            total += await ctx.loop("inner", inner, state=0, history_prune_interval=2)
            return Continue(total) if total < 6 else Break(total)

        return await ctx.loop("outer", outer, state=0, history_prune_interval=1)

    assert h.finish(h.start(flavour(ship))).output == 6


def test_a_loop_without_operations_can_be_evicted(h: Harness, flavour: Flavour) -> None:
    from tests.core.driving import evicted_pass

    count = 0

    async def ship(ctx: Any) -> Any:
        async def body(ctx: Any) -> None:
            nonlocal count
            count += 1

        await ctx.loop("loop", body)

    h.start(flavour(ship), id="run")
    assert evicted_pass(h, "run", when=lambda: count >= 50).state == "pending"
    assert 50 <= count < 60
