"""The workflows of the worker processes: old and new code, with other names of a step, a workflow or a queue."""

from __future__ import annotations

import os
from pathlib import Path

from durable import Break, Context, Continue, current_step, workflow

NAME = os.environ.get("NAME_OF_STEP", "charge")
WORKFLOW = os.environ.get("NAME_OF_WORKFLOW", "renames.bill")
CODE = os.environ.get("NAME_OF_QUEUE", NAME)


@workflow(name="renames.order")
def process_order(ctx: Context, directory: str) -> int:
    """Charge, with a park after each time, until there is a file `stop`."""
    return repeat(ctx, directory, CODE)


@workflow(name=WORKFLOW)
def process_bill(ctx: Context, directory: str = "") -> int:
    """Charge as `process_order` does; without a directory once, and rest."""
    if directory:
        return repeat(ctx, directory, WORKFLOW)
    ctx.step("charge", print)
    ctx.sleep("rest", "1 day")
    return 0


@workflow(name="renames.rest")
def rest(ctx: Context) -> None:
    """Charge, and rest."""
    ctx.step(NAME, print)
    ctx.sleep("rest", "1 day")


@workflow(name="renames.family")
def family(ctx: Context) -> None:
    """Rest by a child, in the queue by the name that this code has."""
    ctx.child("rest", rest.using(queue=os.environ.get("NAME_OF_QUEUE", "default")))


def repeat(ctx: Context, directory: str, code: str) -> int:
    """Charge until there is a file `stop`; the log says which code has."""

    def charge() -> bool:
        step = current_step()
        scope = step.location.rpartition("/")[0]
        with (Path(directory) / "log").open("a") as lines:
            lines.write(f"{step.run_id} {scope} {step.idempotency_key} {code}\n")
        return (Path(directory) / "stop").exists()

    def once(inner: Context, number: int) -> Continue[int] | Break[int]:
        is_over = inner.step(NAME, charge)
        inner.sleep("rest", 0.3)
        return Break(number) if is_over else Continue(number + 1)

    return ctx.loop("orders", once, 1)
