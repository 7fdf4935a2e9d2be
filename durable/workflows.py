"""The app's own workflows: operators' requests that are too large for one HTTP request."""

from __future__ import annotations

from functools import partial
from typing import Any

from durable.context import Context
from durable.core.results import Break, Continue
from durable.definitions import workflow
from durable.operations.bulk import BulkOrder, perform_page
from durable.operations.common import BULK

__all__ = ["bulk"]

_REFUSALS_KEPT = 100


@workflow(name=BULK)
def bulk(ctx: Context, order: BulkOrder) -> dict[str, Any]:
    """Apply one verb to many runs, a page of them at a time.

    The state of the loop is the progress: how many runs were `done` and `refused`, and how many are `left`, if that is
    known. At the end the output is the same, with the first `refusals`, each as run, outcome and detail.
    """

    def page(scope: Context, state: dict[str, Any]) -> Continue | Break:
        # Each page is one transaction: a worker that dies has either processed and recorded a whole page, or nothing.
        perform = partial(perform_page, order)  # bound, so that each page does not record the whole order
        results, cursor = scope.step("apply", perform, state["cursor"], atomic=True, timeout=120)
        refused = [each for each in results if each.outcome != "done"]
        left = state["left"]
        after = {
            "cursor": cursor,
            "done": state["done"] + len(results) - len(refused),
            "refused": state["refused"] + len(refused),
            "left": None if left is None else max(0, left - len(results)),
            "refusals": [*state["refusals"], *([each.run_id, each.outcome, each.detail] for each in refused)][
                :_REFUSALS_KEPT
            ],
        }
        if cursor is None:
            return Break({name: after[name] for name in ("done", "refused", "refusals")})
        return Continue(after)

    begin = {"cursor": None, "done": 0, "refused": 0, "left": order.selection.total, "refusals": []}
    outcome: dict[str, Any] = ctx.loop("runs", page, state=begin)
    return outcome
