"""Maps: one child for each input, a bounded number at a time; in both flavours."""

from __future__ import annotations

from typing import Any

import pytest

from durable import AsyncContext, Context, CriticalError, workflow
from durable.testing import Harness

CALLS: list[Any] = []
FAIL: set[Any] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


def work(number: int) -> int:
    CALLS.append(number)
    if number in FAIL:
        raise CriticalError(f"no {number}")
    return number * 10


@workflow(name="maps.one")
def one(ctx: Context, number: int, seconds: float = 0) -> int:
    if seconds:
        ctx.sleep("before", seconds)
    return ctx.step("work", work, number)


def _shown(result: Any) -> Any:
    return [
        result.outputs,
        [(each.number, each.child_id, str(each.error)) for each in result.failed],
        [(each.number, each.child_id, each.reason) for each in result.cancelled],
    ]


@workflow(name="maps.all")
def all_of(ctx: Context, count: int, at_once: int | None = None, on_failure: Any = "stop", seconds: float = 0) -> Any:
    inputs = [(number, seconds) for number in range(count)]
    return _shown(ctx.map("bills", one, inputs, at_once=at_once, on_failure=on_failure))


@workflow(name="maps.aall")
async def aall_of(
    ctx: AsyncContext, count: int, at_once: int | None = None, on_failure: Any = "stop", seconds: float = 0
) -> Any:
    inputs = [(number, seconds) for number in range(count)]
    return _shown(await ctx.map("bills", one, inputs, at_once=at_once, on_failure=on_failure))


both = pytest.mark.parametrize("parent", [all_of, aall_of], ids=["sync", "async"])


@both
def test_a_child_runs_for_each_input_and_the_outputs_are_in_their_order(parent: Any) -> None:
    with Harness() as h:
        run = h.start(parent.using(id="p"), 3)
        assert h.run(run).state == "sleeping"
        assert run.summary == 'waiting for the children of the map "bills" (3)'
        assert [each.id for each in run.children(group="bills")] == ["p:bills:0", "p:bills:1", "p:bills:2"]
        assert h.finish(run).output == [[0, 10, 20], [], []]


@both
def test_no_inputs_give_an_empty_result_at_once(parent: Any) -> None:
    with Harness() as h:
        run = h.start(parent.using(id="p"), 0)
        h.run(run)
        assert run.state == "completed"
        assert run.result() == [[], [], []]


@both
def test_at_most_so_many_run_at_once_and_the_parent_is_woken_once(parent: Any) -> None:
    with Harness() as h:
        run = h.start(parent.using(id="p"), 5, 2)
        h.run(run)
        passes = []
        while True:
            due = [each.id for each in run.children() if each.info().wake_at is not None]
            open_ones = [each.id for each in run.children() if each.state == "pending"]
            if not open_ones:
                break
            assert len(due) == min(2, len(open_ones))
            h.run(due[-1])
            passes.append(run.state)
            assert (run.info().wake_at is not None) == (len(open_ones) == 1)
        h.settle()
        assert run.result() == [[0, 10, 20, 30, 40], [], []]
        assert sorted(CALLS) == [0, 1, 2, 3, 4]


@both
def test_failures_are_reported_if_the_others_are_to_finish(parent: Any) -> None:
    FAIL.update({1, 3})
    with Harness() as h:
        run = h.start(parent.using(id="p"), 5, 2, "finish")
        h.settle()
        assert run.result() == [
            [0, 20, 40],
            [(1, "p:bills:1", "CriticalError: no 1"), (3, "p:bills:3", "CriticalError: no 3")],
            [],
        ]


@both
def test_the_first_failure_cancels_the_others(parent: Any) -> None:
    FAIL.add(1)
    with Harness() as h:
        run = h.start(parent.using(id="p"), 50, 2)
        h.settle()
        assert run.state == "failed"
        error = run.info().error
        assert error is not None
        assert error.type == "MapError"
        assert error.message.startswith('1 of the 50 children of the map "bills" of maps.one failed, and 4')
        assert '"p:bills:1" failed: CriticalError: no 1' in error.message
        assert {each.state for each in run.children()} <= {"completed", "failed", "cancelled"}
        assert len(CALLS) <= 4
