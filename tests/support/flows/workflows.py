"""Workflows that tell over Redis how far they are: each step pushes a line to the list `flows`."""

import asyncio
import os
import time

from django.conf import settings
from redis import Redis

from durable import AsyncContext, Context, current_step, workflow


def tell(line: str) -> str:
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.rpush("flows", f"{line} {os.getpid()}")
    return line


@workflow(name="flows.one")
def one(ctx: Context, name: str) -> str:
    result: str = ctx.step("tell", tell, name)
    return result


@workflow(name="flows.nap")
def nap(ctx: Context, name: str, seconds: float) -> str:
    ctx.sleep("nap", seconds)
    result: str = ctx.step("tell", tell, name)
    return result


def until_evicted(name: str) -> str:
    """Last until the worker has to stop; the second attempt, elsewhere, is quick."""
    tell(f"{name} attempt {current_step().attempt}")
    deadline = time.monotonic() + 60
    while not current_step().is_evicted() and time.monotonic() < deadline:
        with Redis.from_url(settings.REDIS_URL) as redis:
            if redis.exists(f"go {name}"):
                break
        time.sleep(0.01)
    return name


@workflow(name="flows.long")
def long(ctx: Context, name: str) -> str:
    ctx.step("last", until_evicted, name, timeout=0)
    result: str = ctx.step("tell", tell, f"{name} done")
    return result


def until_let_go(name: str) -> None:
    """Last until the list `go` has an item for this run."""
    tell(name)
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.blpop(["go"], timeout=300)


@workflow(name="flows.held")
def held(ctx: Context, name: str) -> None:
    ctx.step("last", until_let_go, name, timeout=0)


async def until_released(name: str) -> str:
    """Last until `go <name>` is set; the event loop goes on meanwhile."""
    tell(f"{name} attempt {current_step().attempt}")
    with Redis.from_url(settings.REDIS_URL) as redis:
        while not (redis.exists(f"go {name}") or current_step().is_evicted()):  # noqa: ASYNC110 - another process says go
            await asyncio.sleep(0.01)
    return name


@workflow(name="flows.along")
async def along(ctx: AsyncContext, name: str) -> str:
    """The same as `flows.long`, awaited."""
    await ctx.step("last", until_released, name, timeout=0)
    result: str = await ctx.step("tell", tell, f"{name} done")
    return result


@workflow(name="flows.hears")
def hears(ctx: Context, name: str) -> str:
    """Tell what a message says."""
    result: str = ctx.step("tell", tell, f"{name} heard {ctx.queue.next('news', names=['news']).body}")
    return result


@workflow(name="flows.silent")
def silent(ctx: Context, name: str) -> str:
    """Say, once there are news, which process has received them; without Redis."""
    body: str = ctx.queue.next("news").body
    pid: int = ctx.step("pid", os.getpid)
    return f"{name} heard {body}, pid {pid}"


def spin() -> None:
    """Python code that does not end."""
    while True:
        time.sleep(0.001)


@workflow(name="flows.endless")
def endless(ctx: Context, name: str) -> str:
    """Tell how a step ended that never does by itself."""
    failure = ctx.try_step("spin", spin, timeout=0.2).failure
    result: str = ctx.step("tell", tell, f"{name} {failure.kind if failure else 'ended'}")
    return result
