"""Workflows that tell over Redis how far they are: each step pushes a line to the list `flows`."""

import os
import time

from django.conf import settings
from redis import Redis

from durable import Context, current_step, workflow


def tell(line: str) -> str:
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.rpush("flows", f"{line} {os.getpid()}")
    return line


@workflow(name="flows.one")
def one(ctx: Context, name: str) -> str:
    told: str = ctx.step("tell", tell, name)
    return told


@workflow(name="flows.nap")
def nap(ctx: Context, name: str, seconds: float) -> str:
    ctx.sleep("nap", seconds)
    told: str = ctx.step("tell", tell, name)
    return told


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
    told: str = ctx.step("tell", tell, f"{name} done")
    return told
