"""Runs of every kind. What each has to come to follows from its input alone, so that rows can be audited."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db.models import F

from durable import AsyncContext, Break, Context, Continue, CriticalError, RollbackContext, workflow
from project.shop.models import Charge, Product

#: What is struck down by faults is tried again until they end.
STUBBORN: dict[str, Any] = {"max_retries": 1_000_000, "retry_backoff_base": 0.02, "retry_backoff_max": 0.3}


def charge(reference: str) -> None:
    """A row, and a number that is counted up: neither bears repetition."""
    Charge.objects.create(reference=reference, amount=1)
    Product.objects.filter(slug="counter").update(price=F("price") + 1)


@workflow(name="chaos.count")
def count(ctx: Context, until: int) -> int:
    """So many atomic charges."""

    def once(c: Context, number: int) -> Break | Continue:
        c.step("charge", charge, ctx.run_id, atomic=True, **STUBBORN)
        return Break(number + 1) if number + 1 == until else Continue(number + 1)

    counted: int = ctx.loop("count", once, state=0, history_prune_interval=3)
    return counted


@workflow(name="chaos.collect")
def collect(ctx: Context, until: int) -> list[int]:
    """The numbers that were sent, in the order of their receipt."""
    got: list[int] = []
    while len(got) < until:
        batch = ctx.queue.next_batch(f"after {len(got)}", names=["numbers"], count=3)
        got += [message.body for message in batch]
        ctx.step(f"note {len(got)}", len, got, **STUBBORN)
    return got


@workflow(name="chaos.nap")
def nap(ctx: Context, seconds: float) -> list[float]:
    """Sleeps, each between two readings of the clock; the differences."""
    slept = []
    for number in range(3):
        before = ctx.step(f"before {number}", time.time, **STUBBORN)
        ctx.sleep(f"nap {number}", seconds)
        slept.append(ctx.step(f"after {number}", time.time, **STUBBORN) - before)
    return slept


@workflow(name="chaos.pair")
def pair(ctx: Context, other: str, rounds: int, *, begins: bool) -> list[int]:
    """Play ball with another run; the numbers that came."""
    came = []
    for number in range(rounds):
        if begins:
            ctx.queue.send("ball", number, to=other)
        came.append(ctx.queue.next(f"catch {number}", names=["ball"]).body)
        if not begins:
            ctx.queue.send("ball", number, to=other)
    return came


@workflow(name="chaos.parallel")
def parallel(ctx: Context) -> dict[str, Any]:
    """Branches that charge, sleep and race."""

    def charged(c: Context) -> str:
        c.step("charge", charge, ctx.run_id, atomic=True, **STUBBORN)
        return "charged"

    def slept(duration: float) -> Callable[[Context], float]:
        def body(c: Context) -> float:
            c.sleep("sleep", duration)
            return duration

        return body

    joined = ctx.join("join", {"one": charged, "two": charged, "three": charged})
    race = ctx.race("race", {"long": slept(3600), "short": slept(0.2)})
    return {"joined": joined, "winner": race.winner}


@workflow(name="chaos.wander")
async def wander(ctx: AsyncContext, until: int) -> int:
    """An asynchronous run: charges in branches, naps between them."""
    for number in range(until):

        async def branch(c: AsyncContext) -> None:
            await c.step("charge", charge, ctx.run_id, atomic=True, **STUBBORN)

        await ctx.join(f"{number}", {"left": branch, "right": branch})
        await ctx.sleep(f"nap {number}", 0.15)
    return until


def give_back(rollback: RollbackContext, _output: None) -> None:
    """Take one row back, however often it is asked to."""
    Charge.objects.filter(reference=rollback.args[0]).delete()


@workflow(name="chaos.undo")
def undo(ctx: Context) -> None:
    """Charges, fails, and is compensated."""
    ctx.rollback_checkpoint("from here on")
    for number in range(3):
        ctx.step(f"{number}", charge, f"{ctx.run_id} {number}", atomic=True, rollback=give_back, **STUBBORN)
    raise CriticalError("as it has to")
