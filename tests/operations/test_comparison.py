"""Two runs compared from code: what differs, place by place, on a harness and in each store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable import Actor, Context, Handle, HistoryDifference, RunNotFoundError, acting_as, get_run, workflow
from durable.testing import Harness
from tests.support.stores import in_force, passed

BROKEN: list[str] = []


def charge(number: int) -> int:
    if BROKEN:
        raise ValueError(BROKEN[0])
    return number


@workflow(name="tests.comparison.order")
def order(ctx: Context, number: int, extra: str = "") -> int:
    charged = ctx.step("charge", charge, number, max_retries=0)
    if extra:
        ctx.step(extra, len, extra)
    return charged


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    BROKEN.clear()
    yield
    BROKEN.clear()


def told(found: list[HistoryDifference]) -> dict[str, tuple[str, ...]]:
    return {each.location: each.differs for each in found}


def test_two_runs_are_compared_place_by_place() -> None:
    with Harness() as h:
        for name in ("one", "same"):
            h.finish(order.using(id=name).start(7))
        h.finish(order.using(id="other").start(8, "note"))
        assert get_run("one").compare("same") == []
        found = get_run("one").compare(get_run("other"))
        assert told(found) == {"charge": ("output",), "note": ("place",)}
        [_, note] = found
        assert note.left is None
        assert note.right is not None
        assert note.right.data["output"] == len("note")
        assert told(get_run("other").compare("one")) == {"charge": ("output",), "note": ("place",)}


def test_failures_and_what_was_given_by_hand_differ() -> None:
    with Harness() as h:
        BROKEN.append("no answer")
        failed = order.using(id="failed").start(7)
        h.finish(failed)
        BROKEN[:] = ["another answer"]
        other = order.using(id="other").start(7)
        h.finish(other)
        assert told(failed.compare(other)) == {"charge": ("error",)}
        BROKEN.clear()
        with acting_as(Actor("cli", label="ada"), reason="asked the bank"):
            given = failed.give_output("charge", 7, id="given")
        h.finish(given)
        assert told(failed.compare(given)) == {"charge": ("status", "error", "output", "given by hand")}


def test_a_run_that_is_not_there() -> None:
    with Harness() as h:
        h.finish(order.using(id="one").start(7))
        for left, right in (("one", "none"), ("none", "one")):
            with pytest.raises(RunNotFoundError):
                Handle(left).compare(right)


async def test_the_twin_says_the_same() -> None:
    with Harness() as h:
        for name, number in (("one", 7), ("two", 8)):
            await h.afinish(await order.using(id=name).astart(number))
        assert await get_run("one").acompare("two") == get_run("one").compare("two")


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_on_each_store() -> None:
    with in_force() as at:
        one, two = order.using(id="one").start(7), order.using(id="two").start(8)
        for each in (one, two):
            passed(at, each.id)
        assert told(one.compare(two)) == {"charge": ("output",)}
