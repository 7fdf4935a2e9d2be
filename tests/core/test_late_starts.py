"""A run that ends in the pass in which it was about to start a child: the child is not started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from durable import AsyncContext, Context, Limit, get_run, runtime, workflow
from durable.testing import Harness

PASS_TIME: list[Any] = []
undone: list[Any] = []


def undo(_rollback: Any, output: Any) -> None:
    undone.append(output)


def key_after_a_while(*_: object) -> str:
    """The key of a limit, for which the start of a child asks after its operation has begun."""
    for each in PASS_TIME:
        each()
    return "k"


SLOW = Limit("late-starts", at_once=9, key=key_after_a_while)


@workflow(name="late_starts.child", limit=SLOW)
def child(ctx: Context) -> str:
    ctx.sleep("for long", 60)
    return "done"


@workflow(name="late_starts.calls")
def calls(ctx: Context, with_rollback: bool) -> str:
    ctx.rollback_checkpoint("from here")
    if with_rollback:
        ctx.step("charge", str, 1, rollback=undo)
    return ctx.child("label", child)


@workflow(name="late_starts.acalls")
async def acalls(ctx: AsyncContext, with_rollback: bool) -> str:
    await ctx.rollback_checkpoint("from here")
    if with_rollback:
        await ctx.step("charge", str, 1, rollback=undo)
    return await ctx.child("label", child)


@pytest.fixture(autouse=True)
def nothing_happens() -> Iterator[None]:
    PASS_TIME.clear()
    undone.clear()
    yield
    PASS_TIME.clear()


@pytest.mark.parametrize("with_rollback", [False, True])
@pytest.mark.parametrize("parent", [calls, acalls], ids=["sync", "async"])
def test_no_child_is_started_by_a_run_that_has_reached_its_deadline(parent: Any, with_rollback: bool) -> None:
    with Harness() as h:
        run = h.start(parent.using(id="p", deadline=30), with_rollback)
        PASS_TIME.append(lambda: h.advance(60))
        h.settle()
        PASS_TIME.clear()
        assert run.error is not None
        assert (run.state, run.error.type) == ("failed", "RunDeadlineError")
        assert runtime.current().store.get("p:label") is None
        assert run.children() == []
        assert undone == (["1"] if with_rollback else [])
        run.recover()
        h.settle()
        assert get_run("p:label").state == "sleeping", "the recovery starts it"
