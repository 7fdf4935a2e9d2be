"""Workflows of the end-to-end tests, for real workers."""

import os

from durable import Break, Context, Continue, workflow

__all__ = ["bystander", "collect", "killer"]


@workflow(name="e2e.collect")
def collect(ctx: Context, expected: int) -> list[int]:
    """Receive messages until `expected` of them have come; their bodies in the order of receipt."""

    def receive(c: Context, got: list[int]) -> Break | Continue:
        batch = c.queue.next_batch("numbers", names=["numbers"], count=3)
        seen = c.step("note", lambda: [*got, *(message.body for message in batch)])
        return Break(seen) if len(seen) >= expected else Continue(seen)

    received: list[int] = ctx.loop("receive", receive, state=[])
    return received


@workflow(name="e2e.killer")
def killer(ctx: Context) -> None:
    """Has a step that takes its process along, each time."""
    ctx.step("kill", os._exit, 9, max_retries=2)


@workflow(name="e2e.bystander")
def bystander(ctx: Context, number: int) -> int:
    """Does a little work, in the batch of whoever."""
    doubled: int = ctx.step("double", lambda: number * 2)
    return doubled
