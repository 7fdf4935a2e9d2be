"""The workflow of the worker processes: old and new code, which differ in the name of a step."""

from __future__ import annotations

import os
from pathlib import Path

from durable import Break, Context, Continue, current_step, workflow

__all__ = ["process_order"]

NAME = os.environ.get("NAME_OF_STEP", "charge")


@workflow(name="renames.order")
def process_order(ctx: Context, directory: str) -> int:
    """Charge, with a park after each time, until there is a file `stop`."""

    def charge() -> bool:
        step = current_step()
        scope = step.location.rpartition("/")[0]
        with (Path(directory) / "log").open("a") as lines:
            lines.write(f"{step.run_id} {scope} {step.idempotency_key} {NAME}\n")
        return (Path(directory) / "stop").exists()

    def once(inner: Context, number: int) -> Continue[int] | Break[int]:
        is_over = inner.step(NAME, charge)
        inner.sleep("rest", 0.3)
        return Break(number) if is_over else Continue(number + 1)

    return ctx.loop("orders", once, 1)
