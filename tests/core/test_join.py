"""`ctx.join`: all settle, each branch parks only itself, nested ones included."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from durable.errors import JoinError
from durable.testing import Harness
from tests.core.branches import failing, sleeping, stepping, waiting
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour
from tests.support.errors import check_failed, error_of


def joined(branches: dict[str, Any]) -> Any:
    async def ship(ctx: Any) -> Any:
        found = await ctx.join("join", branches)
        await ctx.sleep("rest", 1)
        return found

    return ship


def test_returns_the_outputs_in_the_order_of_its_branches(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(joined({"z": stepping(1), "a": stepping((2,)), "b/c": stepping(None)})))
    output = h.finish(run).output
    assert list(output.items()) == [("z", 1), ("a", (2,)), ("b/c", None)]
    assert [each.location for each in run.history()] == ["join", "join/z/a", "join/a/a", "join/b%2Fc/a", "rest"]


def test_of_no_branches_is_empty(h: Harness, flavour: Flavour) -> None:
    assert h.finish(h.start(flavour(joined({})))).output == {}


def test_all_settle_before_it_fails(h: Harness, flavour: Flavour) -> None:
    calls: list[str] = []

    async def ship(ctx: Any) -> Any:
        await ctx.join("join", {"bad": failing, "slow": sleeping(60), "good": stepping("done", calls)})

    run = h.start(flavour(ship))
    parked = h.run(run)
    assert parked.state == "sleeping"
    assert parked.wake_at == h.now + timedelta(seconds=60)
    assert calls == ["done"]
    check_failed(h.finish(run), "JoinError", 'join failed: branch "bad": StepExhaustedError')
    branches = run.history()[0].data["branches"]
    assert {name: each["status"] for name, each in branches.items()} == {
        "bad": "failed",
        "slow": "completed",
        "good": "completed",
    }
    assert (branches["slow"]["output"], branches["bad"]["error"].type) == (None, "StepExhaustedError")


def test_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def inner(ctx: Any) -> Any:
        return await ctx.join("inner", {"a": stepping(1), "b": sleeping(30, 2)})

    async def ship(ctx: Any) -> Any:
        first = await ctx.join("join", {"a": inner, "b": stepping(3), "c": sleeping(60, 4)})
        try:
            await ctx.join("failing", {"a": failing, "b": stepping(5)})
        except JoinError as error:
            return first, sorted(error.errors)

    h.crash_everywhere(flavour(ship))


def test_a_branch_parks_only_itself(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(joined({"a": sleeping(60, "a"), "b": sleeping(30, "b"), "c": stepping("c")})))
    assert h.run(run).wake_at == h.now + timedelta(seconds=30)
    h.advance(30)
    assert h.run(run).wake_at == h.now + timedelta(seconds=30)
    assert h.finish(run).output == {"a": "a", "b": "b", "c": "c"}


@pytest.mark.parametrize(
    ("branches", "names", "deadline"),
    [
        ({"a": waiting("x"), "b": waiting("y")}, ["x", "y"], None),
        ({"a": waiting("x"), "b": sleeping(60)}, ["x"], 60),
        ({"a": waiting("x", timeout=5), "b": sleeping(60)}, ["x"], 5),
        ({"a": waiting("x"), "b": waiting()}, [], None),
        ({"a": waiting(), "b": waiting("x", timeout=9)}, [], 9),
        ({"a": sleeping(60), "b": stepping(1)}, None, 60),
    ],
)
def test_waits_for_what_any_branch_waits_for(
    h: Harness, flavour: Flavour, branches: Any, names: Any, deadline: Any
) -> None:
    """Fault 15: a wait for any message is not forgotten beside one for a named queue."""
    parked = h.run(h.start(flavour(joined(branches))))
    assert parked.waiting_for == names
    assert parked.wake_at == (h.now + timedelta(seconds=deadline) if deadline else None)


def test_a_message_goes_to_one_branch(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(joined({"a": waiting("q"), "b": waiting("q"), "any": waiting()})))
    h.run(run)
    for number in range(3):
        h.send(run, "q", number)
        h.settle()
    assert h.finish(run).output == {"a": 0, "b": 1, "any": 2}


def test_branches_that_run_at_once_take_different_messages(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(joined({name: waiting("q") for name in "abcd"})), id="run")
    for number in range(4):
        h.send(run, "q", number)
    threaded_pass(h, "run")
    assert sorted(h.finish(run).output.values()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ctx: ctx.join("j", {"": stepping(1)}), "a name must not be empty"),
        (lambda ctx: ctx.join("j", {3: stepping(1)}), "a name must be text"),
    ],
)
def test_says_what_is_wrong_with_a_call(h: Harness, flavour: Flavour, call: Any, text: str) -> None:
    async def ship(ctx: Any) -> Any:
        await call(ctx)

    assert text in error_of(h.run(h.start(flavour(ship)))).message


def test_branches_are_a_dict(h: Harness) -> None:
    assert "a dict of name to function, not list" in error_of(h.run(h.start(lambda ctx: ctx.join("j", [len])))).message


def test_an_output_of_a_branch_that_the_codec_refuses_stops_the_run(h: Harness, flavour: Flavour) -> None:
    async def unrecordable(ctx: Any) -> Any:
        return object()

    check_failed(
        h.run(h.start(flavour(joined({"a": unrecordable, "b": stepping(1)})))),
        "PayloadError",
        'the output of branch "a" of "join"',
    )


def test_the_location_of_a_branch_has_a_limit(h: Harness, flavour: Flavour) -> None:
    async def deeper(ctx: Any) -> Any:
        await ctx.join("n" * 128, {"b" * 128: deeper})

    assert "shorten the names" in error_of(h.run(h.start(flavour(deeper)))).message


def test_deeply_nested_ones_with_threads_do_not_wait_for_each_other(h: Harness, flavour: Flavour) -> None:
    """More branches than threads, at every depth."""

    def nested(depth: int) -> Any:
        async def branch(ctx: Any) -> Any:
            if not depth:
                return await ctx.step("a", lambda: 1)
            found = await ctx.join("join", {str(n): nested(depth - 1) for n in range(3)})
            return sum(found.values())

        return branch

    run = h.start(flavour(nested(4)), id="run")
    threaded_pass(h, "run")
    assert run.output == 81


# -- at most some at a time


def bounded(branches: dict[str, Any], at_once: int) -> Any:
    async def ship(ctx: Any) -> Any:
        return await ctx.join("join", branches, at_once=at_once)

    return ship


def _begun(run: Any) -> dict[str, str]:
    return {name: each["status"] for name, each in run.history()[0].data["branches"].items()}


def test_as_many_branches_run_as_it_says_in_the_order_of_the_code(h: Harness, flavour: Flavour) -> None:
    branches = {"z": sleeping(60, 1), "a": sleeping(30, 2), "m": sleeping(60, 3), "b": stepping(4)}
    run = h.start(flavour(bounded(branches, 2)))
    h.run(run)
    assert _begun(run) == {"z": "running", "a": "running", "m": "pending", "b": "pending"}
    h.advance(30)
    h.settle()
    assert _begun(run) == {"z": "running", "a": "completed", "m": "running", "b": "pending"}
    h.advance(30)
    h.settle()
    assert _begun(run) == {"z": "completed", "a": "completed", "m": "running", "b": "completed"}
    assert list(h.finish(run).output.items()) == [("z", 1), ("a", 2), ("m", 3), ("b", 4)]


def test_a_branch_that_fails_makes_room_for_the_next(h: Harness, flavour: Flavour) -> None:
    run = h.start(flavour(bounded({"bad": failing, "good": sleeping(60, 1), "last": stepping(2)}, 1)))
    check_failed(h.finish(run), "JoinError")
    assert _begun(run) == {"bad": "failed", "good": "completed", "last": "completed"}


def test_a_bounded_join_is_crash_proof(h: Harness, flavour: Flavour) -> None:
    branches = {"a": sleeping(30, 1), "b": stepping(2), "c": sleeping(60, 3), "d": stepping(4)}
    h.crash_everywhere(flavour(bounded(branches, 2)))


@pytest.mark.parametrize("to", [1, 3])
def test_another_bound_in_newer_code_begins_no_branch_anew(h: Harness, flavour: Flavour, to: int) -> None:
    bounds = [2, to]
    branches = {"a": sleeping(60, 1), "b": sleeping(30, 2), "c": sleeping(60, 3), "d": stepping(4)}

    run = h.start(flavour.calling(lambda ctx: ctx.join("join", branches, at_once=bounds[0])))
    h.run(run)
    bounds.pop(0)
    h.advance(30)
    h.settle()
    assert (
        _begun(run)
        == {
            1: {"a": "running", "b": "completed", "c": "pending", "d": "pending"},
            3: {"a": "running", "b": "completed", "c": "running", "d": "completed"},
        }[to]
    )
    assert h.finish(run).output == {"a": 1, "b": 2, "c": 3, "d": 4}


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_a_bound_is_a_number_from_one_on(h: Harness, flavour: Flavour, wrong: Any) -> None:
    ended = h.run(h.start(flavour(bounded({"a": stepping(1)}, wrong))))
    assert (
        "at_once must be a whole number of at least 1, or None for all branches at a time, not "
        in error_of(ended).message
    )


def test_no_more_threads_or_tasks_than_the_bound_are_in_branches(h: Harness, flavour: Flavour) -> None:
    inside: set[str] = set()
    most: list[int] = []
    together = threading.Barrier(3)

    def body(name: str) -> Any:
        async def branch(ctx: Any) -> Any:
            inside.add(name)
            most.append(len(inside))
            await ctx.step("meet", lambda: together.wait(30) and None)
            inside.remove(name)
            return name

        return branch

    names = [str(number) for number in range(12)]
    h.start(flavour(bounded({name: body(name) for name in names}, 3)), id="run")
    threaded_pass(h, "run")
    assert list(h.peek("run").output) == names
    assert max(most) <= 3
