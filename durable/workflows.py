"""The workflow of operators' requests that are too large for one HTTP request."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from durable.context import Context
from durable.core.registry import BULK, CANARY, DECISION
from durable.core.results import Break, Continue
from durable.definitions import workflow

if TYPE_CHECKING:
    from durable.operations.bulk import BulkOrder

_REFUSALS_KEPT: Final = 100
_COUNTED: Final = ("done", "refused", "refusals")
_LOOK_EVERY: Final = (1.0, 15.0)  # seconds between two queries of the canary: the first interval, the longest one

State = dict[str, Any]


@workflow(name=BULK)
def bulk(ctx: Context, order: BulkOrder) -> State:
    """Apply one verb to many runs, a page of them at a time.

    The state of the loop is the progress: how many runs were `done` and `refused`, and how many are `left`, if that is
    known. `phase` is "canary" until the first runs have been tried, "watch" until these have come to something,
    "stopped" while an operator has to decide, and then "rest". `tried` are the runs of the canary, `again` is how many
    of them have failed, and `open` how many were under way when the bulk looked last.

    At the end the output is the same, with the first `refusals`, each as run, outcome and detail.
    """

    def iteration(scope: Context, state: State) -> Continue[State] | Break[State]:
        phase = state.get("phase", "rest")
        if phase == "watch":
            return _watch(scope, order, state)
        if phase == "stopped":
            return _decide(scope, state)
        return _page(scope, order, state)

    begin: State = {"cursor": None, "done": 0, "refused": 0, "left": order.total, "refusals": []}
    if order.canary is not None:
        begin |= {"phase": "canary", "tried": []}
    outcome: State = ctx.loop("runs", iteration, state=begin)
    return outcome


def _page(scope: Context, order: BulkOrder, state: State) -> Continue[State] | Break[State]:
    """Apply the verb to the next runs.

    Each page is one transaction: a worker that dies has either processed and recorded a whole page, or nothing.
    """
    from durable.operations.bulk import perform_page  # what steers runs: processes that bring in no bulk do without

    limit = order.page_size
    canary = order.canary if state.get("phase") == "canary" else None
    if canary is not None:
        limit = min(limit, canary.first - len(state["tried"]))
    perform = partial(perform_page, order)  # bound, so that each page does not record the whole order
    results, cursor = scope.step("apply", perform, state["cursor"], limit, atomic=True, timeout=120)
    refused = [each for each in results if each.outcome != "done"]
    left = state["left"]
    after = {
        **state,
        "cursor": cursor,
        "done": state["done"] + len(results) - len(refused),
        "refused": state["refused"] + len(refused),
        "left": None if left is None else max(0, left - len(results)),
        "refusals": [*state["refusals"], *([each.run_id, each.outcome, each.detail] for each in refused)][
            :_REFUSALS_KEPT
        ],
    }
    if cursor is None:
        return Break(_outcome(after))
    if canary is not None:
        after["tried"] = [*state["tried"], *(each.new_id or each.run_id for each in results if each.outcome == "done")]
        if len(after["tried"]) >= canary.first:
            after |= {"phase": "watch", "until": (scope.now() + timedelta(seconds=canary.within)).isoformat()}
    pause = order.pause_after(len(results))
    if pause is not None:
        scope.sleep("pace", pause)
    return Continue(after)


def _watch(scope: Context, order: BulkOrder, state: State) -> Continue[State]:
    """Query the runs of the canary, and wait for them."""
    from durable.operations.bulk_decisions import look

    assert order.canary is not None
    looks = state.get("looks", 0)
    found = scope.step("look", partial(look, state["tried"], datetime.fromisoformat(state["until"])))
    after = {**state, "looks": looks + 1, "again": found.failed, "open": found.open}
    if found.failed >= order.canary.stop_after or (found.open and found.is_over):
        return Continue({**after, "phase": "stopped"})
    if not found.open:
        return Continue({**after, "phase": "rest"})
    first, longest = _LOOK_EVERY
    scope.sleep("wait", min(first * 1.5 ** min(looks, 20), longest))
    return Continue(after)


def _decide(scope: Context, state: State) -> Continue[State] | Break[State]:
    """Wait until an operator decides whether the bulk continues, and whether the next runs are tried alone first."""
    decision = scope.queue.next(DECISION).body
    if decision == CANARY:
        return Continue({**state, "phase": "canary", "tried": [], "looks": 0, "again": 0, "open": 0})
    if decision is True:
        return Continue({**state, "phase": "rest"})
    return Break({**_outcome(state), "stopped": True, "left": state["left"]})


def _outcome(state: State) -> State:
    return {name: state[name] for name in _COUNTED}
