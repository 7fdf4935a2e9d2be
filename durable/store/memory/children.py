"""The children of runs in memory, their groups, and what the end of a parent does to them.

What `durable.store.tables.endings` and `durable.store.tables.groups` are for databases. The store holds its lock around
each call, and passes its runs, whose rows are replaced here where a child or a parent changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from durable.core.child_entries import divided
from durable.core.records import (
    ENDED,
    Batch,
    ChildRecord,
    GroupChange,
    GroupRecord,
    Member,
    RunRecord,
    RunState,
    WhenParentEnds,
)
from durable.store.base import ChildIdTaken
from durable.store.rules import group_rules, row_rules
from durable.store.rules.row_rules import CANCELLING

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


@dataclass(slots=True)
class MemoryChildren:
    """Parents and children in memory: also the dropped ones, and the parents with some left to be cancelled."""

    _children: dict[str, dict[str, ChildRecord]] = field(default_factory=dict)  # by parent and child
    _dropped: set[str] = field(default_factory=set)
    _cascades: dict[str, datetime] = field(default_factory=dict)  # by parent: since when
    _readers: dict[str, set[str]] = field(default_factory=dict)  # by child: replays of its parent that may read it
    groups: MemoryGroups = field(default_factory=MemoryGroups)

    def copied(self) -> MemoryChildren:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        children = {parent: dict(each) for parent, each in self._children.items()}
        readers = {child: set(each) for child, each in self._readers.items()}
        return MemoryChildren(children, set(self._dropped), dict(self._cascades), readers, self.groups.copied())

    def add(self, child: ChildRecord, *, is_new: bool) -> None:
        """Note a child. Raises ChildIdTaken for a run that is there already and is no child of this parent."""
        known = self._children.setdefault(child.parent_id, {})
        if not is_new and child.run_id not in known:
            raise ChildIdTaken(child.run_id)
        known.setdefault(child.run_id, child)

    def of_runs(self, runs: Sequence[RunRecord]) -> dict[str, ChildRecord]:
        """Return what is noted of those of the runs that are children, by run."""
        found = (self._children.get(run.parent_id or "", {}).get(run.id) for run in runs)
        return {each.run_id: each for each in found if each is not None}

    def of_parent(
        self, runs: Mapping[str, RunRecord], parent_id: str, state: str | None, group: str | None
    ) -> list[str]:
        """Return the children of a run in this state and group, None for any, in the order of their starts."""
        return [
            each.run_id
            for each in self._in_order(parent_id)
            if state in (None, runs[each.run_id].state) and group in (None, each.group)
        ]

    def parent_of(self, runs: Mapping[str, RunRecord], run: RunRecord) -> RunRecord | None:
        """Return the parent of a run that is a child."""
        parent = runs.get(run.parent_id or "")
        return parent if parent is not None and run.id in self._children.get(parent.id, ()) else None

    def end(self, runs: Runs, run: RunRecord, at: datetime) -> int:
        """Cancel the children of a run that are to be cancelled, and theirs, a bounded number; return how many."""
        number = 0
        parents = [run]
        while parents:
            parent = parents.pop(0)
            open_ones = self._cancellable(runs, parent)
            for child in open_ones[: row_rules.CASCADED_AT_ONCE - number]:
                number += 1
                runs[child.id] = after = row_rules.after_parent(child, parent, at)
                if after.state in ENDED:
                    parents.append(after)
                    self.groups.ended(runs, self._children[parent.id][child.id], after, at)
            if self._cancellable(runs, parent):
                self._cascades.setdefault(parent.id, at)
            else:
                self._cascades.pop(parent.id, None)
        return number

    def drop(self, runs: Runs, run_id: str, children: Sequence[str], at: datetime, *, every: bool) -> None:
        """Cancel these children of a run that goes on; unless `every`, not those that go on after its end."""
        known = self._children.get(run_id, {})
        ids, places = divided(children)
        own = [known[each] for each in [*ids, *self.below(runs, run_id, places)] if each in known]
        self._dropped |= {each.run_id for each in own if every or each.when_parent_ends == WhenParentEnds.CANCEL}
        if children:
            self.end(runs, runs[run_id], at)

    def below(self, runs: Mapping[str, RunRecord], parent_id: str, places: tuple[str, ...]) -> list[str]:
        """Return the open children of a run that were started below these places."""
        found = (each for each in self._in_order(parent_id) if places and each.location.startswith(places))
        return [each.run_id for each in found if runs[each.run_id].state not in ENDED]

    def has_any(self, parent_id: str) -> bool:
        """Return True if the run has children."""
        return bool(self._children.get(parent_id))

    def number_below(self, runs: Mapping[str, RunRecord], parent_id: str, place: str) -> dict[str, int]:
        """Return how many children of a run were started below this place, by workflow."""
        found = (each.run_id for each in self._in_order(parent_id) if each.location.startswith(place))
        return dict(Counter(runs[each].workflow for each in found))

    def note_reader(self, run_id: str, children: Sequence[str]) -> None:
        """Note that this run, a replay, may read these children of another."""
        for child in children:
            self._readers.setdefault(child, set()).add(run_id)

    def readers_of(self, runs: Mapping[str, RunRecord], child_id: str) -> list[str]:
        """Return the replays that have not ended and may read this child."""
        found = self._readers.get(child_id, ())
        return sorted(each for each in found if each in runs and runs[each].state not in ENDED)

    def take_out(self, runs: Runs, change: GroupChange) -> None:
        """Take children out of their group: they are children of their own from then on."""
        for run_id in change.taken_out:
            if self.groups.take_out(runs, change.id, run_id):
                family = self._children[runs[run_id].parent_id or ""]
                family[run_id] = replace(family[run_id], member_of=None)

    def change_group(self, runs: Runs, run_id: str, change: GroupChange, now: datetime) -> None:
        """Mark what the parent has decided about a group; let children begin, or cancel them."""
        self.groups.mark(run_id, change)
        if change.is_dropped:
            self.end(runs, runs[run_id], now)
        elif self.groups.get(change.id) is not None:
            self.groups.go_on(runs, change, now)

    def cascade(self, runs: Runs, after: str, now: datetime) -> tuple[str, int] | None:
        """Go on with the first parent behind `after` that has children left (`Store.cascade`)."""
        found = min((each for each in self._cascades if each > after), default=None)
        return None if found is None else (found, self.end(runs, runs[found], now))

    def left(self, runs: Mapping[str, RunRecord], run_ids: Sequence[str]) -> dict[str, int]:
        """Return how many children of these parents are left to be cancelled, of those that have some."""
        return {
            each: len(self._cancellable(runs, runs[each]))
            for each in run_ids
            if each in self._cascades and each in runs
        }

    def _cancellable(self, runs: Mapping[str, RunRecord], parent: RunRecord) -> list[RunRecord]:
        """Return the children of this parent that are to be cancelled and are not yet."""
        wanted = [
            runs[each.run_id]
            for each in self._in_order(parent.id)
            if each.run_id in self._dropped
            or self.groups.is_dropped(each)
            or (parent.state in ENDED and each.when_parent_ends == WhenParentEnds.CANCEL)
        ]
        return [each for each in wanted if not row_rules.is_ending(each)]

    def _in_order(self, parent_id: str) -> list[ChildRecord]:
        return sorted(
            self._children.get(parent_id, {}).values(), key=lambda each: (each.position, each.generation, each.run_id)
        )


def due_for_children(runs: Mapping[str, RunRecord], batch: Batch, groups: MemoryGroups) -> RunRecord | None:
    """Return a run that parks for a child which has ended or is gone, or for a group that is settled, due at once.

    None for any other.
    """
    run = runs[batch.run_id]
    found = (runs.get(each) for each in batch.awaited_children)
    has_ended = any(child is None or child.state in ENDED for child in found)
    is_due = run.state not in ENDED and (has_ended or groups.is_one_settled(batch.awaited_groups))
    return replace(run, wake_at=batch.now) if is_due else None
