"""Workflows of the tests of the command line."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

from durable import Context, CriticalError, current_step, workflow

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202e end"


@workflow(name="cli.echo")
def echo(ctx: Context, *args: Any, **kwargs: Any) -> Any:
    return ctx.step("echo", lambda: [list(args), kwargs])


@workflow(name="cli.typed", messages={"count": int})
def typed(ctx: Context) -> int:
    found: int = ctx.queue.next("count").body
    return found


@workflow(name="cli.failing")
def failing(ctx: Context, message: str = "no money") -> str:
    ctx.step("before", lambda: 1)
    return str(ctx.step("charge", charge, message, max_retries=0))


def charge(message: str) -> str:
    if mended:
        return "charged"
    raise ValueError(message)


mended: list[bool] = []


def undo(_rollback: Any, _output: Any) -> None:
    """Nothing is left outside."""


@workflow(name="cli.compensated")
def compensated(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", lambda: 1, rollback=undo)
    raise ValueError("out of stock")


@workflow(name="cli.approving")
def approving(ctx: Context) -> Any:
    return ctx.queue.next("approval", names=["approved", "rejected"], timeout="2 days").body


@workflow(name="cli.paid")
def paid(ctx: Context) -> Any:
    return ctx.event("paid", "order.paid", key="7")


@workflow(name="cli.asked")
def asked(ctx: Context) -> None:
    message = ctx.queue.next("question", names=["quote"], completable=True)
    message.complete({"price": message.body["sku"] * 2})


@workflow(name="cli.refusing")
def refusing(ctx: Context) -> None:
    message = ctx.queue.next("order", completable=True)
    message.refuse(f"out of stock{HOSTILE}")


@workflow(name="cli.napping")
def napping(ctx: Context) -> None:
    ctx.sleep("nap", "1 hour")


@workflow(name="cli.deadly")
def deadly(ctx: Context) -> None:
    """Kill the process that checks it beside others."""
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.sleep("nap", "1 hour")


@workflow(name="cli.bill")
def bill(ctx: Context, number: int) -> str:
    return ctx.step("charge", charged, number)


def charged(number: int) -> str:
    if number == 1 and not mended:
        raise CriticalError("the card has expired")
    return f"bill {number}"


@workflow(name="cli.night")
def night(ctx: Context, size: int = 3) -> int:
    bills = ctx.map("bills", bill, [(number,) for number in range(size)], on_failure="finish")
    return ctx.step("report", int, len(bills.failed))


@workflow(name="cli.stopped")
def stopped(ctx: Context, size: int = 3) -> int:
    """A run that fails in its map: the second bill has failed."""
    ctx.map("bills", bill, [(number,) for number in range(size)], at_once=1, on_failure="stop")
    return ctx.step("report", int, 1)


@workflow(name="cli.racing")
def racing(ctx: Context) -> str:
    won = ctx.race("first", {"slow": lambda c: c.sleep("nap", "1 hour"), "quick": lambda c: c.step("s", lambda: 1)})
    return str(won.winner)


@workflow(name="cli.steps")
def steps(ctx: Context) -> int:
    total = 0
    for name in ("a", "b", "c"):
        total += ctx.step(name, lambda: 1)
    return total


def spell(word: str) -> int:
    for letter in word:
        current_step().emit(letter)
    if not word:
        raise CriticalError("nothing to spell")
    return len(word)


@workflow(name="cli.spelling")
def spelling(ctx: Context, word: str) -> int:
    return ctx.step("spell", spell, word)
