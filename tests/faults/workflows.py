"""Workflows for real workers that are to be stopped, cut off and started again."""

from __future__ import annotations

import os

from django.conf import settings
from redis import Redis

from durable import Context, get_run, workflow
from project.shop.models import Mail

__all__ = ["crossing", "haunted"]


def redis() -> Redis:
    """The tests' Redis, with patience."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=180)


def post(key: str) -> None:
    """A row of the application's."""
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=key)


def hold(run: str) -> int:
    """Write a row, and the first time say so and wait until the test lets go. Returns the process's id."""
    pid = os.getpid()
    post(f"{run} {pid}")
    with redis() as client:
        if client.incr(f"{run}:calls") == 1:
            client.rpush(f"{run}:holds", pid)
            client.blpop([f"{run}:go"], timeout=150)
    return pid


@workflow(name="faults.haunted")
def haunted(ctx: Context, is_atomic: bool) -> list[int]:
    """Two steps; in the first one a worker can be stopped."""
    first = ctx.step("hold", hold, ctx.run_id, atomic=is_atomic, timeout=0)
    second = ctx.step("after", os.getpid)
    return [first, second]


@workflow(name="faults.crossing")
def crossing(ctx: Context, other: str, messages: int) -> list[int]:
    """Atomic steps that each send to the other run: both lock both rows, in opposite orders."""
    for number in range(messages):
        ctx.step(
            f"send {number}",
            lambda number=number: get_run(other).send("crossing", number, id=f"{ctx.run_id} {number}"),
            atomic=True,
            max_retries=50,
            retry_backoff_base=0.01,
        )
    return [ctx.queue.next(f"wait {number}", names=["crossing"]).body for number in range(messages)]
