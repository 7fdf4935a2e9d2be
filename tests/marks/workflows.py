"""A workflow whose steps note outside of the database that they were called."""

import os
from pathlib import Path

from durable import Context, workflow


def note(run: str, number: int) -> int:
    """Write a line into the ledger."""
    with Path(os.environ["MARKS_LEDGER"]).open("a") as ledger:
        ledger.write(f"{run} {number}\n")
    return number


@workflow(name="marks.counting")
def counting(ctx: Context, most: int) -> None:
    """Note the numbers up to `most`, with a sleep behind each."""
    for number in range(most):
        ctx.step(f"note {number}", note, ctx.run_id, number)
        ctx.sleep(f"rest {number}", 0.2)
