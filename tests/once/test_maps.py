"""Held children of a map: whether they keep their place in `at_once`, in both flavours."""

from __future__ import annotations

from typing import Any

import pytest

from durable import AsyncContext, Context, Found, NotDone, Unknown, workflow
from durable.testing import Harness

DONE: list[int] = []


def pay(number: int) -> int:
    if number == 0:
        raise ConnectionError("the bank is away")
    DONE.append(number)
    return number


def find(number: int) -> Found[int] | NotDone | Unknown:
    if number == 0:
        return Unknown("the bank is away")
    return Found(number) if number in DONE else NotDone()


@workflow(name="tests.once.maps.child")
def child(ctx: Context, number: int) -> int:
    return ctx.step("pay", pay, number, max_retries=0, when_exhausted="hold")


@workflow(name="tests.once.maps.asks")
def asks(ctx: Context, number: int) -> int:
    return ctx.step("pay", pay, number, once=True, verify=find, unknown_timeout="1 hour")


@workflow(name="tests.once.maps.parent")
def parent(ctx: Context, when_held: Any) -> list[int]:
    return ctx.map("pay", child, [(n,) for n in range(3)], at_once=1, when_held=when_held).outputs


@workflow(name="tests.once.maps.aparent")
async def aparent(ctx: AsyncContext, when_held: Any) -> list[int]:
    return (await ctx.map("pay", child, [(n,) for n in range(3)], at_once=1, when_held=when_held)).outputs


@workflow(name="tests.once.maps.finishes")
def finishes(ctx: Context) -> list[int]:
    found = ctx.map("pay", asks, [(n,) for n in range(3)], at_once=1, when_held="free", on_failure="finish")
    return found.outputs


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.mark.parametrize("flavour", [parent, aparent], ids=["sync", "async"])
@pytest.mark.parametrize(("when_held", "done"), [("keep", []), ("free", [1, 2])])
def test_the_others_wait_or_go_on(h: Harness, flavour: Any, when_held: str, done: list[int]) -> None:
    run = flavour.start(when_held)
    h.settle()
    held = f"{run.id}:pay:0"
    assert (DONE, run.state) == (done, "sleeping")
    assert [each.location for each in h.held(held)] == ["pay"]
    h.settle_step(held, "pay", done=0)
    h.finish(run)
    assert (run.output, sorted(DONE)) == ([0, 1, 2], [1, 2])


def test_the_choice_is_recorded_only_where_it_is_made(h: Harness) -> None:
    runs = [parent.start("keep"), parent.start("free")]
    h.settle()
    found = [each.data.get("when_held") for run in runs for each in run.history() if each.kind == "map"]
    assert found == [None, "free"]


def test_another_word_is_refused(h: Harness) -> None:
    run = parent.start("drop")
    h.finish(run)
    assert 'when_held is "keep" or "free", not \'drop\'' in str(run.error)


def test_a_death_at_any_commit_loses_no_child(h: Harness) -> None:
    def check() -> None:
        assert sorted(DONE) == [1, 2], "none is lost, and none is done twice"
        DONE.clear()

    assert h.crash_everywhere(finishes, check=check) > 10
