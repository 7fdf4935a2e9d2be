"""The recovery of the failed children of a map, by a pass of their parent that was recovered.

They are recovered in batches, each child in a transaction of its own. The entry says how far that has come, so a crash
costs a look at one batch. The parent is open meanwhile: no end of it, and no sweep, cancels those that go on already.
"""

from __future__ import annotations

from typing import Final

from durable.core.effects import SAVE, Operation, PeekGroup, PeekMembers, RecoverChild
from durable.core.map_entries import AGAIN
from durable.core.records import EntryRecord, GroupChange, GroupRecord, Member, RunState
from durable.core.scope import Scope

_BATCH: Final = 100  # children between two commits, which tell how many are recovered


def recover_failed(scope: Scope, entry: EntryRecord) -> Operation:
    """Recover the children of the map that have failed, so that the group counts them as running or waiting again."""
    journal, group_id = scope.journal, entry.data["group"]
    group: GroupRecord | None = yield PeekGroup(group_id)
    again = entry.data[AGAIN]
    if group is not None and "of" not in again:
        again = {**again, "of": group.failed, "done": 0, "after": -1}
        with journal.lock:  # open again before the first child goes on: it has its turn then
            journal.change_group(GroupChange(id=group_id, is_continued=True))
            journal.mark(entry, data={**entry.data, AGAIN: again})
        yield SAVE
    while group is not None:
        found: list[Member] = yield PeekMembers(group_id, again["after"], _BATCH)
        for member in found:
            if member.state == RunState.FAILED:
                scope.guard.check_may_go_on()
                yield RecoverChild(member.run_id, again["by"])
        if len(found) < _BATCH:
            break
        group = yield PeekGroup(group_id)
        left = 0 if group is None else group.failed
        again = {**again, "done": max(0, again["of"] - left), "after": found[-1].position}
        journal.mark(entry, data={**entry.data, AGAIN: again})
        yield SAVE
    journal.mark(entry, data={name: value for name, value in entry.data.items() if name != AGAIN})
    yield SAVE
