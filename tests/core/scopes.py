"""Scopes in which a workflow may have its operations: the run's own, and one of each kind of block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from durable import Break, Continue

Body = Callable[[Any], Any]


async def root(ctx: Any, body: Body) -> Any:
    return await body(ctx)


async def loop(ctx: Any, body: Body) -> Any:
    async def iteration(ctx: Any, n: int) -> Any:
        if n:
            return Break(await body(ctx))
        await ctx.step("first iteration", int)
        return Continue(n + 1)

    return await ctx.loop("loop", iteration, state=0)


async def join(ctx: Any, body: Body) -> Any:
    async def other(ctx: Any) -> Any:
        await ctx.sleep("rest", 600)

    return (await ctx.join("join", {"other": other, "body": body}))["body"]


async def race(ctx: Any, body: Body) -> Any:
    async def other(ctx: Any) -> Any:
        await ctx.sleep("rest", 600)

    return (await ctx.race("race", {"other": other, "body": body})).value


async def block(ctx: Any, body: Body) -> Any:
    return (await ctx.try_block("block", body)).value


async def deep(ctx: Any, body: Body) -> Any:
    return await block(ctx, lambda ctx: join(ctx, lambda ctx: loop(ctx, body)))


SCOPES: Final[list[Callable[[Any, Body], Awaitable[Any]]]] = [root, loop, join, race, block, deep]
