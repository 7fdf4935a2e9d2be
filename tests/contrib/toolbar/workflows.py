"""A workflow for the views."""

from __future__ import annotations

from durable import Context, workflow


@workflow(name="toolbar.waiting")
def waiting(ctx: Context) -> None:
    """Wait for a message."""
    ctx.queue.next("word")
