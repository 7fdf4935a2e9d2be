"""The compensation of the children of a map, when its parent rolls back.

The children of a map have no order among themselves, so those of a batch are compensated at the same time, the batches
from the last inputs to the first. A batch has as many children as the map runs at a time. The parent is woken once for
each batch: the group's count says when none of its children is open. Each look is repeated after a crash, and changes
nothing that has happened already.

Children that have not ended are cancelled with their rollback before that, also where the failure of a map cancels
them: a plain cancel would leave what they have done until the parent rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from durable.core.child_rollback import LOOK_EVERY
from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation, PeekGroup, PeekMembers, UndoChild
from durable.core.errors import ErrorInfo
from durable.core.journal import Journal
from durable.core.map_entries import ANEW, CLOSED, UNDONE_FROM, UNDONE_SOME, taken_out
from durable.core.map_replacing import undo_taken_out
from durable.core.records import (
    ENDED,
    NOTHING,
    EntryRecord,
    EntryStatus,
    GroupChange,
    GroupRecord,
    Member,
    RunRecord,
    RunState,
)
from durable.core.summary import awaiting_group

_BATCH: Final = 500  # children that one query reads, and that are compensated at the same time
_TEXT: Final = 1_000  # characters of the error of a compensation that has stopped; the child has the whole


def cancel_open(journal: Journal, entry: EntryRecord, check: Callable[[], None]) -> Operation:
    """Let no other child of the map begin, and cancel the open ones with their rollback.

    Raises Park until all have ended.

    `check` is called between two children, and raises if the pass has to end.
    """
    group_id = entry.data["group"]
    if not entry.data.get(CLOSED):
        with journal.lock:
            journal.change_group(GroupChange(id=group_id, is_read=True))
            journal.mark(entry, data={**entry.data, CLOSED: True})
        yield SAVE
    after, is_open = -1, False
    while True:
        found: list[Member] = yield PeekMembers(group_id, after, _BATCH)
        for member in found:
            after = member.position
            if member.state not in ENDED:
                check()
                child = yield UndoChild(member.run_id, only_open=True)
                is_open |= child is not None and child.state not in ENDED
        if len(found) < _BATCH:
            break
    if is_open:
        raise _waiting(entry, None)


def undo_map(journal: Journal, entry: EntryRecord, by: str | None, check: Callable[[], None]) -> Operation:
    """Compensate the children of the map. Return the error that stops this, None without one.

    Raises Park while some of them have not ended. `check` is called before each child, and raises if the pass has to
    end.
    """
    group: GroupRecord | None = yield PeekGroup(entry.data["group"])
    is_own = group is not None and group.spec.parent_id == journal.run.id
    if entry.data.get(ANEW) and not is_own:  # a replay that has started no children yet: they are its original's
        yield from _finish(journal, entry, by, is_undone=False)
        return None

    if is_own and entry.status not in (EntryStatus.COMPLETED, EntryStatus.EXHAUSTED):
        yield from cancel_open(journal, entry, check)
    first, until = entry.data["position"], _left(entry)
    replaced = taken_out(entry) if is_own else {}
    if replaced:
        others: list[RunRecord] = yield from undo_taken_out(entry, check, is_replaced=False)
        if stopped := [each for each in others if each.state_after_rollback]:
            return _stopped(stopped)
    while until > 0:
        begin = max(0, until - min(_BATCH, entry.data["at_once"] or _BATCH))
        found: list[Member] = yield PeekMembers(entry.data["group"], first + begin - 1, until - begin)
        batch = [each for each in found if each.position < first + until]
        children: list[RunRecord] = []
        for member in reversed(batch):
            check()
            child = yield UndoChild(member.run_id)
            children += [] if child is None else [child]
        expected = until - begin - sum(begin <= number < until for number in replaced)
        if len(children) < expected:
            return _gone(expected - len(children))
        if any(each.state not in ENDED for each in children):
            raise _waiting(entry, None if is_own else journal.environment.now() + LOOK_EVERY)
        if stopped := [each for each in children if each.state_after_rollback]:
            return _stopped(stopped)
        some = any(each.state == RunState.CANCELLED and each.output is not None for each in children)
        policy = entry.data["rollback"]
        policy = {**policy, UNDONE_FROM: begin, UNDONE_SOME: policy.get(UNDONE_SOME, False) or some}
        journal.mark(entry, data={**entry.data, "rollback": policy})
        yield SAVE
        until = begin
    yield from _finish(journal, entry, by, is_undone=entry.data["rollback"].get(UNDONE_SOME, False))
    return None


def _left(entry: EntryRecord) -> int:
    """Return how many children are left to look at, the first ones."""
    left: int = entry.data["rollback"].get(UNDONE_FROM, entry.data.get("created", 0))
    return left


def _finish(journal: Journal, entry: EntryRecord, by: str | None, *, is_undone: bool) -> Operation:
    """Note the end of the compensation. A recovery starts the map again if one of its children had completed."""
    policy = entry.data["rollback"]
    if is_undone:
        policy = policy if by is None else {**policy, "by": by}
        undone = {"rollback_completed_at": journal.environment.now()}
    else:
        policy, undone = {**policy, NOTHING: True}, {}
    journal.mark(entry, data={**entry.data, "rollback": policy}, rollback_error=None, **undone)
    yield SAVE


def _waiting(entry: EntryRecord, deadline: datetime | None) -> Park:
    doing = [awaiting_group(entry.location, entry.data["size"])]
    return Park(deadline, doing=doing, groups=frozenset({entry.data["group"]}))


def _gone(number: int) -> ErrorInfo:
    children = "1 child" if number == 1 else f"{number} children"
    return ErrorInfo("ChildCancelledError", f"{children} of the map cannot be compensated: deleted")


def _stopped(children: Sequence[RunRecord]) -> ErrorInfo:
    more = f", and that of {len(children) - 1} others," if len(children) > 1 else ""
    text = f'the compensation of child "{children[0].id}"{more} has stopped: {children[0].error}'
    return ErrorInfo("ChildFailedError", text[:_TEXT])
