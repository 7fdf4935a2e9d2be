"""Branches for the tests of join and race: each does one thing."""

from __future__ import annotations

from typing import Any


def stepping(value: Any, calls: list[Any] | None = None) -> Any:
    def note() -> Any:
        if calls is not None:
            calls.append(value)
        return value

    async def branch(ctx: Any) -> Any:
        return await ctx.step("a", note)

    return branch


async def failing(ctx: Any) -> Any:
    await ctx.step("a", lambda: 1 / 0, max_retries=0)


def sleeping(seconds: float, value: Any = None) -> Any:
    async def branch(ctx: Any) -> Any:
        await ctx.sleep("rest", seconds)
        return await ctx.step("after", lambda: value)

    return branch


def waiting(*names: str, timeout: float | None = None) -> Any:
    async def branch(ctx: Any) -> Any:
        return (await ctx.queue.next("wait", names, timeout=timeout)).body

    return branch
