"""Pruning by hand: an operator runs at once what the sweep does by itself, by the setting `RETENTION`."""

from __future__ import annotations

from collections.abc import Callable

from durable import runtime
from durable.conf import conf
from durable.operations.audit import audited
from durable.retention import Policy, Pruned, Pruner


def prune(policy: Policy, *, tell: Callable[[Pruned], None] = lambda _so_far: None) -> Pruned:
    """Delete the runs and audit rows that `policy` no longer keeps; return how many of each.

    Each batch is one transaction. `tell` is called after each batch with the totals so far. The audit log records the
    totals, also after an interruption. Raises OperationDeniedError.
    """
    at = runtime.current()
    total = Pruned()
    with audited(at, "prune", "") as attribution:
        try:
            for pruned in Pruner(policy, conf.DATABASE).batches(at.now()):
                total += pruned
                tell(total)
        finally:
            detail = f"{total.runs} runs, {total.actions} rows of the audit log"
            at.store.log([attribution.done(before="", after="", detail=detail)])
    return total


def preview_pruning(policy: Policy, *, most: int) -> Pruned:
    """Return how many runs and audit rows `prune` would delete now; counting stops at `most` of each."""
    return Pruner(policy, conf.DATABASE).preview(runtime.current().now(), most)
