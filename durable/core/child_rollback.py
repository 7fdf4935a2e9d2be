"""The compensation of children: what a parent that rolls back does to a child that was started with `rollback=True`.

A child that has ended runs those of its own rollback handlers that are left, the newest first, and ends as cancelled: a
cancel without rollback, a mistake and the limit of crashes leave them. One that has not ended is cancelled with its
rollback. The parent parks until the child has ended. Each look is repeated after a crash, and changes nothing that has
happened already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core import transitions
from durable.core.child_entries import ANEW
from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation, UndoChild
from durable.core.errors import ErrorInfo
from durable.core.journal import Journal
from durable.core.records import ENDED, NOTHING, EntryRecord, Request, RunChange, RunRecord, RunState
from durable.core.summary import DROPPED, Summary, SummaryKind, awaiting

#: How often a run looks at an open run that is not its child, whose end does not wake it: a child of its original.
LOOK_EVERY: Final = timedelta(minutes=1)
#: What the entry of a child's start has as its rollback.
POLICY: Final[dict[str, Any]] = {"child": True}

_ENDING: Final = frozenset({*ENDED, RunState.ROLLING_BACK})
_REASON: Final = 'its parent "{parent}" is compensated'
_REPLACED: Final = 'run "{parent}" starts another child in its place'


def change_of(
    child: RunRecord,
    entries: Callable[[], Sequence[EntryRecord]],
    parent: str,
    now: datetime,
    *,
    only_open: bool = False,
    is_replaced: bool = False,
) -> RunChange:
    """Return the change that begins the compensation of a child, whose row is locked; it may change nothing.

    `only_open`: of a child that has not ended. `is_replaced`: by another one, which its parent is about to start.
    """
    nothing = RunChange(run={"change_seq": child.change_seq})
    if only_open and child.state in ENDED:
        return nothing
    reason = (DROPPED if only_open else _REPLACED if is_replaced else _REASON).format(parent=parent)
    summary = Summary(SummaryKind.COMPENSATING)
    if child.state in ENDED and not child.state_after_rollback:
        if not any(entry.is_compensable for entry in entries()):
            return nothing
        return RunChange(run=transitions.undone_by_parent(child, now=now, reason=reason, summary=summary))
    if child.state in _ENDING or child.state_after_rollback or child.pending_request == Request.CANCEL_ROLLBACK:
        return nothing
    if child.lease_expires_at is not None and child.lease_expires_at > now:
        request = transitions.cancel_requested(child, request=Request.CANCEL_ROLLBACK, reason=reason)
        return RunChange(run=request)
    if any(entry.is_compensable for entry in entries()):
        patch = transitions.cancelled_with_rollback(child, now=now, reason=reason, summary=summary)
    else:
        ended = Summary(SummaryKind.CANCELLED, reason=reason)
        patch = transitions.cancelled_at_once(child, now=now, reason=reason, summary=ended)
    return RunChange(run=patch)


def undo(journal: Journal, entry: EntryRecord, by: str | None) -> Operation:
    """Compensate the child that the operation has started. Return the error that stops this, None without one.

    Raises Park while the child has not ended.
    """
    child_id = entry.data["child"]
    found: RunRecord | None = yield from _undone(journal, entry, is_replaced=False)
    if found is None and ANEW not in entry.data:
        return ErrorInfo("ChildCancelledError", f'child "{child_id}" cannot be compensated: its run was deleted')
    if found is not None and found.state_after_rollback:
        return ErrorInfo("ChildFailedError", f'the compensation of child "{child_id}" has stopped: {found.error}')
    if found is None or found.state != RunState.CANCELLED or found.output is None:
        # it has nothing to undo, or has not completed: what it did is undone, by its own end or by now
        data = {**entry.data, "rollback": {**entry.data["rollback"], NOTHING: True}}
        journal.mark(entry, data=data, rollback_error=None)
    else:
        data = entry.data if by is None else {**entry.data, "rollback": {**entry.data["rollback"], "by": by}}
        journal.mark(entry, data=data, rollback_completed_at=journal.environment.now(), rollback_error=None)
    yield SAVE
    return None


def undo_before_anew(journal: Journal, entry: EntryRecord) -> Operation:
    """Compensate the child that another one is about to replace. Raises Park until that is done.

    It was cancelled without its rollback, by the end of its parent or by an operator. If its compensation has stopped,
    the run waits until an operator has recovered the child: code that comes to a start again cannot be told of a
    failure.
    """
    found: RunRecord | None = yield from _undone(journal, entry, is_replaced=True)
    if found is not None and found.state_after_rollback:
        raise Park(journal.environment.now() + LOOK_EVERY, doing=[awaiting(entry.location, found.id)])


def _undone(journal: Journal, entry: EntryRecord, *, is_replaced: bool) -> Operation:
    """Let the child of the entry undo what is left.

    Return its run, None if it is gone. Raises Park while it is open.
    """
    child_id = entry.data["child"]
    found: RunRecord | None = yield UndoChild(child_id, is_replaced=is_replaced)
    if found is not None and found.state not in ENDED:
        is_own = found.parent_id == journal.run.id
        again = None if is_own else journal.environment.now() + LOOK_EVERY
        raise Park(again, doing=[awaiting(entry.location, child_id)], children=frozenset({child_id}))
    return found
