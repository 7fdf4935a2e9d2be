"""Runs that start, wait for, wake and end one another: children, keys, schedules."""

from __future__ import annotations

from typing import Any

from durable import Break, Context, Continue, CriticalError, workflow
from project.shop.models import Charge, Product
from tests.chaos.workflows import STUBBORN

#: Longer than any chaos: what sleeps so long has to be ended by others.
FOR_EVER = 3_600.0


def charge_once(run_id: str) -> None:
    Charge.objects.create(reference=run_id, amount=1)


def is_mended() -> None:
    """Fail until somebody has mended it."""
    if not Product.objects.filter(slug="mended", price=1).exists():
        raise ValueError("not mended yet")


@workflow(name="chaos.child")
def child(ctx: Context, number: int, depth: int) -> int:
    """One atomic charge, after a nap, and a child of its own."""
    ctx.sleep("nap", 0.05)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return number + (ctx.child("deeper", child, 0, depth - 1) if depth else 0)


@workflow(name="chaos.family")
def family(ctx: Context, size: int) -> list[int]:
    """Children side by side, one of which is waited for at its start; their outputs in order."""
    started = [ctx.start_child(f"child {number}", child, number, number % 2) for number in range(size)]
    first = ctx.child("alone", child, 100, 1)
    return [first, *(each.result(f"result {number}") for number, each in enumerate(started))]


@workflow(name="chaos.odd")
def odd(ctx: Context, number: int) -> int:
    """One atomic charge for an odd number; fail for an even one."""
    if not number % 2:
        raise CriticalError("even")
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return number


@workflow(name="chaos.mapped")
def mapped(ctx: Context, size: int) -> list[int]:
    """A child for each number, three at once, every second of which fails; the outputs, and how many have failed."""
    found = ctx.map("numbers", odd, [(number,) for number in range(size)], at_once=3, on_failure="finish")
    return [*found.outputs, -len(found.failed)]


@workflow(name="chaos.long")
def long(ctx: Context, depth: int) -> None:
    """Sleep longer than anybody waits, above a child that does the same."""
    if depth:
        ctx.start_child("deeper", long, depth - 1)
    ctx.sleep("for ever", FOR_EVER)


@workflow(name="chaos.orphans")
def orphans(ctx: Context, size: int) -> None:
    """Children that only the end of their parent ends."""
    for number in range(size):
        ctx.start_child(f"child {number}", long, 1)
    ctx.sleep("for ever", FOR_EVER)


@workflow(name="chaos.losing")
def losing(ctx: Context) -> str:
    """A race whose loser waits for a child."""

    def slow(c: Context) -> None:
        c.child("long", long, 1)

    race = ctx.race("race", {"slow": slow, "fast": lambda c: c.sleep("nap", 0.1)})
    return str(race.winner)


@workflow(name="chaos.leaving")
def leaving(ctx: Context) -> str:
    """End before a child that goes on."""
    return str(ctx.start_child("left", child.using(when_parent_ends="leave"), 1, 0).id)


@workflow(name="chaos.fragile")
def fragile(ctx: Context) -> str:
    """Fail at once, until it is mended and recovered."""
    ctx.step("try", is_mended, max_retries=0)
    ctx.step("charge", charge_once, ctx.run_id, atomic=True, **STUBBORN)
    return "mended"


@workflow(name="chaos.careful")
def careful(ctx: Context) -> str:
    """Fail with its child, and be recovered with it."""
    found: str = ctx.child("fragile", fragile)
    return found


@workflow(name="chaos.basket")
def basket(ctx: Context) -> list[int]:
    """The numbers that came, until one is the last."""

    def one(c: Context, kept: list[int]) -> Break | Continue:
        click = c.queue.next("click", names=["click"]).body
        return Break([*kept, click["n"]]) if click["last"] else Continue([*kept, click["n"]])

    kept: list[int] = ctx.loop("clicks", one, state=[])
    return kept


@workflow(name="chaos.quiet")
def quiet(ctx: Context, number: int) -> int:
    """Started when it has been quiet; the number of the last start."""
    return number


@workflow(name="chaos.single")
def single(ctx: Context, number: int) -> int:
    """Sleep until another one replaces it."""
    ctx.sleep("for ever", FOR_EVER)
    return number


@workflow(name="chaos.tick")
def tick(ctx: Context, seconds: float) -> Any:
    """The run of a tick; its moment."""
    ctx.sleep("work", seconds)
    return None if ctx.scheduled_for is None else ctx.scheduled_for.isoformat()
