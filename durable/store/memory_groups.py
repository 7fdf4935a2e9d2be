"""The groups of children in `durable.store.memory`: what `durable.store.groups` is for databases.

The store holds its lock around each call, and passes its runs, whose rows are replaced here where a child's turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from durable.core.records import ENDED, ChildRecord, GroupChange, GroupRecord, Member, RunRecord, RunState
from durable.store import group_rules
from durable.store.row_rules import CANCELLING

Runs = dict[str, RunRecord]


class _Turn(NamedTuple):
    """A child that waits for its turn, and the moment before which it does not begin anyway."""

    position: int
    due_at: datetime


@dataclass(slots=True)
class MemoryGroups:
    """The groups with their counts, their children, and those that wait for their turn."""

    _groups: dict[str, GroupRecord] = field(default_factory=dict)
    _members: dict[str, dict[str, ChildRecord]] = field(default_factory=dict)  # by group and run
    _turns: dict[str, dict[str, _Turn]] = field(default_factory=dict)  # by group and run

    def copied(self) -> MemoryGroups:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        members = {group: dict(each) for group, each in self._members.items()}
        turns = {group: dict(each) for group, each in self._turns.items()}
        return MemoryGroups(dict(self._groups), members, turns)

    def get(self, group_id: str) -> GroupRecord | None:
        """Return the group, or None."""
        return self._groups.get(group_id)

    def of_parent(self, parent_id: str) -> list[GroupRecord]:
        """Return the groups of a run, in their order."""
        found = [each for each in self._groups.values() if each.spec.parent_id == parent_id]
        return sorted(found, key=lambda each: each.spec.position)

    def members(
        self, runs: Mapping[str, RunRecord], group_id: str, after: int, count: int, *, is_lost: bool
    ) -> list[Member]:
        """Return the children of a group behind a position (`Store.members`)."""
        children = sorted(self._members.get(group_id, {}).values(), key=lambda each: each.position)
        found = [_member(each, runs[each.run_id]) for each in children if each.position > after and each.run_id in runs]
        if is_lost:
            found = [each for each in found if each.state == "cancelled" or each.pending_request in CANCELLING]
        return found[:count]

    def made(self, change: GroupChange) -> None:
        """Make the group of a change that makes one, unless it was made before."""
        if change.new is not None:
            self._groups.setdefault(change.id, GroupRecord(spec=change.new))

    def let_go(self, runs: Mapping[str, RunRecord], change: GroupChange) -> list[int]:
        """Take the renewed children out of the group; return the places of the starts that replace them.

        For starts that replace none, return the places of those that were not made before.
        """
        if change.is_replacing:
            known = self._members.get(change.id, {})
            return [place for place, start in enumerate(change.starts) if start.run.id not in known]
        if not change.renewed:
            first = change.created - len(change.starts)
            created = self._groups[change.id].created
            return [place for place in range(len(change.starts)) if first + place >= created]
        return [place for place, run_id in enumerate(change.renewed) if self.take_out(runs, change.id, run_id)]

    def take_out(self, runs: Mapping[str, RunRecord], group_id: str, run_id: str) -> bool:
        """Count a child of the group out; return False if it was none."""
        if self._members.get(group_id, {}).pop(run_id, None) is None:
            return False
        had_turn = self._turns.get(group_id, {}).pop(run_id, None) is None
        state = str(runs[run_id].state)
        self._groups[group_id] = group_rules.is_counted_out(self._groups[group_id], state, had_turn=had_turn)
        return True

    def add(self, child: ChildRecord, due_at: datetime) -> bool:
        """Count a new child; return True if it has its turn."""
        assert child.member_of is not None, "a child of a group names it"
        group = self._groups[child.member_of]
        self._members.setdefault(group.spec.id, {})[child.run_id] = child
        group = replace(group, created=group.created + 1, waiting=group.waiting + 1)
        has_turn = group.waiting == 1 and group_rules.places(group) > 0
        if has_turn:
            group = group_rules.after_turns(group, 1)
        else:
            self._turns.setdefault(group.spec.id, {})[child.run_id] = _Turn(child.position, due_at)
        self._groups[group.spec.id] = group
        return has_turn

    def mark(self, parent_id: str, change: GroupChange) -> None:
        """Note what the parent has decided about a group of its own."""
        group = self._groups.get(change.id)
        if group is None or group.spec.parent_id != parent_id:
            return
        if change.is_continued:
            group = replace(group, is_over=False, is_dropped=False)
        if change.is_read:
            group = replace(group, is_over=True, is_dropped=group.is_dropped or change.is_dropped)
        self._groups[change.id] = group

    def is_dropped(self, child: ChildRecord) -> bool:
        """Return True if the child is of a group that was taken back, or that a failure has ended."""
        group = self._groups.get(child.member_of or "")
        return group is not None and group.is_dropped

    def ended(self, runs: Runs, child: ChildRecord, run: RunRecord, at: datetime) -> bool:
        """Count the end of a child, and let the next one begin; return True if the parent is to be woken."""
        group_id = child.member_of or ""
        if run.id not in self._members.get(group_id, ()):
            return False
        before = self._groups[group_id]
        had_turn = self._turns.get(group_id, {}).pop(run.id, None) is None
        after = self._groups[group_id] = group_rules.after_end(before, str(run.state), had_turn=had_turn)
        self.next_turns(runs, group_id, at)
        return group_rules.wakes(before, after)

    def next_turns(self, runs: Runs, group_id: str, at: datetime) -> None:
        """Let as many of the waiting children begin as there is room for."""
        group = self._groups[group_id]
        turns = self._turns.get(group_id, {})
        waiting = sorted(turns, key=lambda each: turns[each].position)
        chosen = waiting[: group_rules.room(group, runs.get(group.spec.parent_id))]
        for run_id in chosen:
            run, turn = runs[run_id], turns.pop(run_id)
            runs[run_id] = replace(run, wake_at=group_rules.begins_at(run, turn.due_at, at))
        self._groups[group_id] = group_rules.after_turns(group, len(chosen))

    def go_on(self, runs: Runs, change: GroupChange, now: datetime) -> None:
        """Let children begin after a commit of the parent, which may let a stopped group go on."""
        if change.is_continued:
            self._groups[change.id] = group_rules.continued(self._groups[change.id])
        self.next_turns(runs, change.id, now)

    def held_back(self, child: ChildRecord | None, before: RunRecord, after: RunRecord, now: datetime) -> RunRecord:
        """Return the run after a verb, without what would let it begin before its turn."""
        if child is None or child.member_of is None or child.run_id not in self._members.get(child.member_of, ()):
            return after
        turns = self._turns.setdefault(child.member_of, {})
        if before.state in ENDED and after.state not in ENDED:
            counted = self._groups[child.member_of]
            group, waits = group_rules.counted_again(counted, str(before.state), after.state)
            self._groups[child.member_of] = group
            if waits:
                turns[child.run_id] = _Turn(child.position, after.wake_at or now)
        elif after.state == RunState.ROLLING_BACK and turns.pop(child.run_id, None) is not None:
            self._groups[child.member_of] = group_rules.after_turns(self._groups[child.member_of], 1)
        return replace(after, wake_at=None) if child.run_id in turns and after.state not in ENDED else after

    def is_one_settled(self, awaited: Sequence[str]) -> bool:
        """Return True if one of these groups is settled, or is gone."""
        found = [self.get(each) for each in awaited]
        return any(each is None or each.is_settled for each in found)


def _member(child: ChildRecord, run: RunRecord) -> Member:
    return Member(
        child.position,
        run.id,
        child.generation,
        str(run.state),
        run.output,
        run.error,
        run.request_reason,
        run.pending_request,
    )
