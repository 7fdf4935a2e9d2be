"""Pruning by hand: what the sweep does by itself as `RETENTION` says, an operator can ask for at once."""

from __future__ import annotations

from collections.abc import Callable

from durable import runtime
from durable.conf import conf
from durable.operations.audited import audited
from durable.retention import Policy, Pruned, Pruner

__all__ = ["preview_pruning", "prune"]


def prune(policy: Policy, *, tell: Callable[[Pruned], None] = lambda _so_far: None) -> Pruned:
    """Delete the runs and the rows of the audit log that `policy` lets go; how many of what.

    Batch after batch, each in a transaction of its own; `tell` is told what has gone so far. The audit log says what went, also
    if it was interrupted. Raises OperationDeniedError.
    """
    at = runtime.current()
    total = Pruned()
    with audited(at, "prune", "") as by:
        try:
            for pruned in Pruner(policy, conf.DATABASE).batches(at.now()):
                total += pruned
                tell(total)
        finally:
            detail = f"{total.runs} runs, {total.actions} rows of the audit log"
            at.store.log([by.done(before="", after="", detail=detail)])
    return total


def preview_pruning(policy: Policy, *, most: int) -> Pruned:
    """How many runs and rows of the audit log would go now; counting stops at `most` of each."""
    return Pruner(policy, conf.DATABASE).preview(runtime.current().now(), most)
