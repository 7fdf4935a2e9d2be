"""The children of a map that others replace after a recovery.

If the map has `rollback=True`, what they did is undone first.
A lost child was cancelled without its rollback: by an end of the parent that undid nothing, or by an operator. A batch
of lost children is taken out of the group in one commit, which notes them in the entry. From then on each is a child of
its own: it has no turn to wait for, and its end wakes the parent. When all of the batch have undone what was left, one
commit starts the others in their places. A crash between any two commits repeats a look, which changes nothing that has
begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from durable.core.child_rollback import LOOK_EVERY
from durable.core.compatibility import marked_as_newer, unmarked
from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation, PeekMembers, UndoChild
from durable.core.journal import Journal
from durable.core.map_entries import ANEW, REPLACED, taken_out
from durable.core.records import ENDED, ChildStart, EntryRecord, GroupChange, Member, RunRecord
from durable.core.scope import Scope
from durable.core.summary import awaiting

_BATCH: Final = 50  # children that undo what they did at the same time; fewer if fewer of the map run at a time

#: Returns the start of the child that replaces another one, given its number, its id and its generation.
Begin = Callable[[int, str, int], ChildStart]


def replace_undone(scope: Scope, entry: EntryRecord, begin: Begin) -> Operation:
    """Start others in the places of the lost children, once these have undone what they did, and let the group go on.

    Raises Park while one of them has not ended. If the compensation of one has stopped, the run waits until an operator
    has recovered that child: code that comes to a map again cannot be told of a failure.
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
        journal.change_group(GroupChange(id=group_id, is_continued=True))
        journal.mark(entry, data=unmarked(data))
    yield SAVE


def undo_taken_out(entry: EntryRecord, check: Callable[[], None], *, is_replaced: bool = True) -> Operation:
    """Let the children that were taken out undo what is left; return those that exist. Raises Park while one is open.

    `check` is called before each child, and raises if the pass has to end.
    """
    children: list[RunRecord] = []
    for child_id, _ in taken_out(entry).values():
        check()
        child: RunRecord | None = yield UndoChild(child_id, is_replaced=is_replaced)
        children += [] if child is None else [child]
    if waited := next((each.id for each in children if each.state not in ENDED), None):
        raise Park(None, doing=[awaiting(entry.location, waited)], children=frozenset({waited}))
    return children


def _take_out(journal: Journal, entry: EntryRecord, found: list[Member]) -> Operation:
    first = entry.data["position"]
    children = {str(each.position - first): [each.run_id, each.generation] for each in found}
    replaced: dict[str, Any] = {"after": found[-1].position, "children": children}
    with journal.lock:
        journal.change_group(GroupChange(id=entry.data["group"], taken_out=[each.run_id for each in found]))
        journal.mark(entry, data=marked_as_newer({**entry.data, REPLACED: replaced}))
    yield SAVE


def _start_others(journal: Journal, entry: EntryRecord, begin: Begin) -> Operation:
    starts = [begin(number, child_id, generation) for number, (child_id, generation) in taken_out(entry).items()]
    others = {str(number): each.run.id for number, each in zip(taken_out(entry), starts, strict=True)}
    data = {
        **entry.data,
        "ids": {**entry.data.get("ids", {}), **others},
        REPLACED: {**entry.data[REPLACED], "children": {}},
    }
    with journal.lock:  # open again before the first child goes on: it has its turn then
        change = GroupChange(id=entry.data["group"], starts=starts, is_replacing=True, is_continued=True)
        journal.change_group(change)
        journal.mark(entry, data=data)
    yield SAVE
