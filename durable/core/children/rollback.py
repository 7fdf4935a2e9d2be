"""The compensation of children: what a parent that rolls back does to a child and to the children of a map.

A child that has ended runs its remaining rollback handlers, the newest first, and ends as cancelled. Handlers remain
after a cancel without rollback, a mistake, or too many crashes. A child that has not ended is cancelled with its
rollback. The parent parks until the child has ended. After a crash, each query is repeated and changes nothing that has
already happened.

The children of a map have no order among themselves. They are compensated in batches, from the last inputs to the
first; a batch is as large as the map's `at_once`, and its children are compensated at the same time. The parent is
woken once for each batch, when the group's count says that none of its children is open. Children that have not ended
are cancelled with their rollback before that, also when the failure of a map cancels them: a plain cancel would leave
their effects until the parent rolls back.

A lost child was cancelled without its rollback, by an end of the parent that undid nothing or by an operator. If the
map has `rollback=True`, its effects are undone before another child replaces it. One commit takes a batch of lost
children out of the group and notes them in the entry. From then on each is a child of its own: it has no turn to wait
for, and its end wakes the parent. When all of the batch have been undone, one commit starts the replacements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core import transitions
from durable.core.children.entries import ANEW, CLOSED, REPLACED, UNDONE_FROM, UNDONE_SOME, taken_out
from durable.core.children.questions import PeekGroup, PeekMembers, UndoChild
from durable.core.compatibility import marked_as_newer, unmarked
from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation
from durable.core.errors import ErrorInfo
from durable.core.journal import Journal
from durable.core.records import (
    ENDED,
    NOTHING,
    ChildStart,
    EntryRecord,
    EntryStatus,
    GroupChange,
    GroupRecord,
    Member,
    Request,
    RunChange,
    RunRecord,
    RunState,
    is_leased,
)
from durable.core.scope import Scope
from durable.core.summary import DROPPED, Summary, SummaryKind, awaiting, awaiting_group

#: How often a replayed run polls a child of its original. That is not its own child, so its end does not wake this run.
LOOK_EVERY: Final = timedelta(minutes=1)
#: The rollback policy in the entry of a child's start.
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
    hands_over: bool = False,
) -> RunChange:
    """Return the change that begins the compensation of a child; it may change nothing. The caller has locked the
    child's row.

    `only_open`: only if the child has not ended. `is_replaced`: its parent is about to start another child in its
    place. `hands_over`: a worker has to end it, if none has it now.
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
    if is_leased(child, now):
        request = transitions.cancel_requested(child, request=Request.CANCEL_ROLLBACK, reason=reason)
        return RunChange(run=request)
    if any(entry.is_compensable for entry in entries()):
        patch = transitions.cancelled_with_rollback(child, now=now, reason=reason, summary=summary)
    elif hands_over:
        asked = Summary(SummaryKind.CANCELLING, reason=reason)
        patch = transitions.cancel_handed_over(child, now=now, reason=reason, summary=asked)
    else:
        ended = Summary(SummaryKind.CANCELLED, reason=reason)
        patch = transitions.cancelled_at_once(child, now=now, reason=reason, summary=ended)
    return RunChange(run=patch)


def undo(journal: Journal, entry: EntryRecord, by: str | None) -> Operation:
    """Compensate the child that the operation has started. Return the error that stops this, or None.

    Raises Park while the child has not ended.
    """
    child_id = entry.data["child"]
    found: RunRecord | None = yield from _undone(journal, entry.location, child_id, is_replaced=False)
    if found is None and ANEW not in entry.data:
        return ErrorInfo("ChildCancelledError", f'child "{child_id}" cannot be compensated: its run was deleted')
    if found is not None and found.state_after_rollback:
        return ErrorInfo("ChildFailedError", f'the compensation of child "{child_id}" has stopped: {found.error}')
    if found is None or found.state != RunState.CANCELLED or found.output is None:
        # the child has nothing to undo, or had not completed: what it did is undone, then or now
        data = {**entry.data, "rollback": {**entry.data["rollback"], NOTHING: True}}
        journal.update(entry, data=data, rollback_error=None)
    else:
        data = entry.data if by is None else {**entry.data, "rollback": {**entry.data["rollback"], "by": by}}
        journal.update(entry, data=data, rollback_completed_at=journal.environment.now(), rollback_error=None)
    yield SAVE
    return None


def undo_before_anew(journal: Journal, location: str, child_id: str) -> Operation:
    """Compensate the child in whose place another is about to start at `location`. Raises Park until that is done.

    The child was cancelled without its rollback, by the end of its parent or by an operator, or an operator has
    recovered it. If its compensation has stopped, the run waits until an operator has recovered the child: the code
    cannot get an error from a start that it makes again.
    """
    found: RunRecord | None = yield from _undone(journal, location, child_id, is_replaced=True)
    if found is not None and found.state_after_rollback:
        raise Park(journal.environment.now() + LOOK_EVERY, doing=[awaiting(location, found.id)])


def _undone(journal: Journal, location: str, child_id: str, *, is_replaced: bool) -> Operation:
    """Let the child of the operation at `location` undo its remaining steps.

    Return its run, None if it is gone. Raises Park while it is open.
    """
    found: RunRecord | None = yield UndoChild(child_id, is_replaced=is_replaced)
    if found is not None and found.state not in ENDED:
        is_own = found.parent_id == journal.run.id
        again = None if is_own else journal.environment.now() + LOOK_EVERY
        raise Park(again, doing=[awaiting(location, child_id)], children=frozenset({child_id}))
    return found


_BATCH: Final = 50  # children that are compensated at the same time; fewer if the map's `at_once` is lower

#: Returns the start of the child that replaces another one, given its number, its id and its generation.
Begin = Callable[[int, str, int], ChildStart]


def replace_undone(scope: Scope, entry: EntryRecord, begin: Begin) -> Operation:
    """Start replacements for the lost children once these are undone, and continue the group.

    Raises Park while one of them has not ended. If the compensation of one has stopped, the run waits until an operator
    has recovered that child: the code cannot get an error from a map that it comes to again.
    """
    journal, group_id = scope.journal, entry.data["group"]
    size = min(_BATCH, entry.data["at_once"] or _BATCH)
    while True:
        if not taken_out(entry):
            after = entry.data.get(REPLACED, {}).get("after", -1)
            found: list[Member] = yield PeekMembers(group_id, after, size, is_lost=True)
            if not found:
                break
            yield from _take_out(journal, entry, found)
        children: list[RunRecord] = yield from undo_taken_out(entry, scope.guard.check_may_go_on)
        if stopped := next((each for each in children if each.state_after_rollback), None):
            raise Park(journal.environment.now() + LOOK_EVERY, doing=[awaiting(entry.location, stopped.id)])
        yield from _start_others(journal, entry, begin)
        scope.guard.check_may_go_on()
    data = {name: value for name, value in entry.data.items() if name not in (ANEW, REPLACED)}
    with journal.lock:
        journal.add(GroupChange(id=group_id, is_continued=True))
        journal.update(entry, data=unmarked(data))
    yield SAVE


def undo_taken_out(entry: EntryRecord, check: Callable[[], None], *, is_replaced: bool = True) -> Operation:
    """Let the children that were taken out of the group undo their remaining steps; return those that still exist.

    Raises Park while one is open.
    """
    children: list[RunRecord] = []
    for child_id, _ in taken_out(entry).values():
        check()
        child: RunRecord | None = yield UndoChild(child_id, is_replaced=is_replaced)
        children += [] if child is None else [child]
    if waited := next((each.id for each in children if each.state not in ENDED), None):
        raise Park(None, doing=[awaiting(entry.location, waited)], children=frozenset({waited}))
    return children


def undo_group_before_anew(journal: Journal, location: str, group: GroupRecord, check: Callable[[], None]) -> Operation:
    """Compensate the children of a group that a recovery has taken back, as many at the same time as it let run.

    The map at `location` is about to make another group. Raises Park until that is done.
    """
    after, size = -1, min(_ROLLBACK_BATCH, group.spec.at_once or _ROLLBACK_BATCH)
    while True:
        found: list[Member] = yield PeekMembers(group.spec.id, after, size)
        is_open = False
        for member in found:
            check()
            after = member.position
            child: RunRecord | None = yield UndoChild(member.run_id, is_replaced=True)
            if child is not None and child.state_after_rollback and child.state in ENDED:
                raise Park(journal.environment.now() + LOOK_EVERY, doing=[awaiting(location, child.id)])
            is_open |= child is not None and child.state not in ENDED
        if is_open:
            doing = [awaiting_group(location, group.spec.size)]
            raise Park(None, doing=doing, groups=frozenset({group.spec.id}))
        if len(found) < size:
            return


def _take_out(journal: Journal, entry: EntryRecord, found: list[Member]) -> Operation:
    first = entry.data["position"]
    children = {str(each.position - first): [each.run_id, each.generation] for each in found}
    replaced: dict[str, Any] = {"after": found[-1].position, "children": children}
    with journal.lock:
        journal.add(GroupChange(id=entry.data["group"], taken_out=[each.run_id for each in found]))
        journal.update(entry, data=marked_as_newer({**entry.data, REPLACED: replaced}))
    yield SAVE


def _start_others(journal: Journal, entry: EntryRecord, begin: Begin) -> Operation:
    starts = [begin(number, child_id, generation) for number, (child_id, generation) in taken_out(entry).items()]
    others = {str(number): each.run.id for number, each in zip(taken_out(entry), starts, strict=True)}
    data = {
        **entry.data,
        "ids": {**entry.data.get("ids", {}), **others},
        REPLACED: {**entry.data[REPLACED], "children": {}},
    }
    with journal.lock:  # the group is open again before the first child continues
        change = GroupChange(id=entry.data["group"], starts=starts, is_replacing=True, is_continued=True)
        journal.add(change)
        journal.update(entry, data=data)
    yield SAVE


_ROLLBACK_BATCH: Final = 500  # children that one query reads, and that are compensated at the same time
_TEXT: Final = 1_000  # characters of the error of a compensation that has stopped; the child has the whole


def cancel_open(journal: Journal, entry: EntryRecord, check: Callable[[], None]) -> Operation:
    """Stop the map from beginning children, and cancel the open ones with their rollback.

    Raises Park until all have ended.

    `check` is called between two children, and raises if the pass has to end.
    """
    group_id = entry.data["group"]
    if not entry.data.get(CLOSED):
        with journal.lock:
            journal.add(GroupChange(id=group_id, is_read=True))
            journal.update(entry, data={**entry.data, CLOSED: True})
        yield SAVE
    after, is_open = -1, False
    while True:
        found: list[Member] = yield PeekMembers(group_id, after, _ROLLBACK_BATCH)
        for member in found:
            after = member.position
            if member.state not in ENDED:
                check()
                child = yield UndoChild(member.run_id, only_open=True)
                is_open |= child is not None and child.state not in ENDED
        if len(found) < _ROLLBACK_BATCH:
            break
    if is_open:
        raise _waiting(entry, None)


def undo_map(journal: Journal, entry: EntryRecord, by: str | None, check: Callable[[], None]) -> Operation:
    """Compensate the children of the map. Return the error that stops this, or None.

    Raises Park while one of them has not ended. `check` is called before each child, and raises if the pass has to end.
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
        begin = max(0, until - min(_ROLLBACK_BATCH, entry.data["at_once"] or _ROLLBACK_BATCH))
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
        journal.update(entry, data={**entry.data, "rollback": policy})
        yield SAVE
        until = begin
    yield from _finish(journal, entry, by, is_undone=entry.data["rollback"].get(UNDONE_SOME, False))
    return None


def _left(entry: EntryRecord) -> int:
    """Return how many of the first children are still to be compensated."""
    left: int = entry.data["rollback"].get(UNDONE_FROM, entry.data.get("created", 0))
    return left


def _finish(journal: Journal, entry: EntryRecord, by: str | None, *, is_undone: bool) -> Operation:
    """Record the end of the compensation. If one of the children had completed, a recovery starts the map again."""
    policy = entry.data["rollback"]
    if is_undone:
        policy = policy if by is None else {**policy, "by": by}
        undone = {"rollback_completed_at": journal.environment.now()}
    else:
        policy, undone = {**policy, NOTHING: True}, {}
    journal.update(entry, data={**entry.data, "rollback": policy}, rollback_error=None, **undone)
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
