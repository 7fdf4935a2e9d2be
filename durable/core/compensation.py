"""Compensation called by the workflow's code: undo the completed steps, and return.

Each handler's success is a commit of its own. So after a crash, an eviction or a handler's backoff, the remaining
handlers run. The step's record names the compensation that has undone it; while that entry is in the history, the step
is not executed again.
"""

from __future__ import annotations

from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation
from durable.core.errors import RollbackCheckpointError
from durable.core.records import NOTHING, EntryKind, EntryStatus
from durable.core.rewind import with_children_to_undo
from durable.core.rollback import RollbackFailed, compensable, roll_back
from durable.core.scope import Scope
from durable.core.summary import compensating

_MAX_REASON = 1_000  # characters of a reason that are kept


def compensate(scope: Scope, reason: str) -> Operation:
    """Run the rollback handlers of all completed steps that are not undone yet, the newest first."""
    if not isinstance(reason, str):
        raise TypeError(f"the reason of a compensation is text, not {reason!r}")
    if scope.is_concurrent:
        raise ValueError(
            "ctx.compensate undoes the steps of the whole run, so it has no place in a branch of a join or a race, beside "
            "which others run: raise an error in the branch, or compensate after the join or race"
        )
    journal = scope.journal
    node = scope.cursor.match_compensation()
    entry = node.entry
    if entry is None or entry.status != EntryStatus.COMPLETED:
        left = compensable(journal)
        if not left and not _has_checkpoint(scope):
            raise RollbackCheckpointError(node.location, "ctx.compensate()")
        if entry is None:
            data = {"reason": reason[:_MAX_REASON], "handlers": len(left)}
            entry = scope.create(node, EntryKind.COMPENSATE, data=data, status=EntryStatus.RUNNING)
            journal.mark(entry)
        try:
            yield from roll_back(journal, by=entry.location)
        except Park as park:
            doing = [compensating(entry.data["reason"])]
            raise Park(park.deadline, doing=doing, children=park.children, groups=park.groups) from None
        except RollbackFailed as failed:
            scope.journal.stop(failed)
        for each in journal.entries():
            if NOTHING in each.data.get("rollback", ()):
                journal.mark(each, data=with_children_to_undo(each))
        journal.finish(entry)
        yield SAVE
    scope.determinism.observe(entry)


def _has_checkpoint(scope: Scope) -> bool:
    return scope.has_checkpoint or any(each.kind == EntryKind.ROLLBACK_CHECKPOINT for each in scope.journal.entries())
