"""Children and their groups in memory, for `durable.store.rules.child_rules`. The caller has locked the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.records import (
    ENDED,
    Batch,
    ChildRecord,
    GroupRecord,
    GroupSpec,
    Member,
    RunRecord,
    WhenHeld,
    WhenParentEnds,
)
from durable.store.base import ChildIdTaken
from durable.store.memory.tables import MemoryTable
from durable.store.rules import row_rules
from durable.store.rules.child_rules import Turn, begins_at


@dataclass(slots=True)
class MemoryChildren(MemoryTable):
    """A `durable.store.rules.child_rules.ChildTable` in memory. `free` releases the key, slots and reservations of an
    ended run. `calls_at_end` returns whether a workflow has an `on_end`, `is_held` whether a step of a run is held.
    """

    runs: dict[str, RunRecord]
    free: Callable[[str], None]
    calls_at_end: Callable[[str], bool]
    is_held: Callable[[str], bool]
    _children: dict[str, dict[str, ChildRecord]] = field(default_factory=dict)  # by parent and child
    _dropped: set[str] = field(default_factory=set)
    _left: dict[str, datetime] = field(default_factory=dict)  # by parent that has children left to cancel: since when
    _readers: dict[str, set[str]] = field(default_factory=dict)  # by child: replays of its parent that may read it
    _groups: dict[str, GroupRecord] = field(default_factory=dict)
    _turns: dict[str, dict[str, Turn]] = field(default_factory=dict)  # by group and run

    def with_end(self, workflows: Collection[str]) -> set[str]:
        return {each for each in workflows if self.calls_at_end(each)}

    # -- groups

    def get(self, group_id: str) -> GroupRecord | None:
        group = self._groups.get(group_id)
        if group is None or group.spec.when_held != WhenHeld.FREE:
            return group
        mine = (each.run_id for each in self._in_order(group.spec.parent_id) if each.member_of == group_id)
        return replace(group, held=sum(map(self.is_held, mine)))

    counted = get

    def of_parent(self, parent_id: str) -> list[GroupRecord]:
        found = [each for each in self._groups.values() if each.spec.parent_id == parent_id]
        return sorted(found, key=lambda each: each.spec.position)

    def members(self, group_id: str, after: int, count: int, *, is_lost: bool) -> list[Member]:
        group = self._groups.get(group_id)
        children = self._in_order(group.spec.parent_id) if group is not None else []
        mine = [each for each in children if each.member_of == group_id and each.position > after]
        found = [_member(each, self.runs[each.run_id]) for each in mine if each.run_id in self.runs]
        if is_lost:
            found = [
                each for each in found if each.state == "cancelled" or each.pending_request in row_rules.CANCELLING
            ]
        return found[:count]

    def is_one_settled(self, awaited: Sequence[str]) -> bool:
        found = [self.get(each) for each in awaited]
        return any(each is None or each.is_settled for each in found)

    def make(self, spec: GroupSpec) -> None:
        self._groups.setdefault(spec.id, GroupRecord(spec=spec))

    def write(self, before: GroupRecord, after: GroupRecord) -> None:
        decided = self._groups[before.spec.id]
        self._groups[before.spec.id] = replace(after, is_over=decided.is_over, is_dropped=decided.is_dropped)

    def decide(self, parent_id: str, group_id: str, *, is_over: bool, is_dropped: bool | None) -> None:
        group = self._groups.get(group_id)
        if group is not None and group.spec.parent_id == parent_id:
            is_dropped = group.is_dropped if is_dropped is None else is_dropped
            self._groups[group_id] = replace(group, is_over=is_over, is_dropped=is_dropped)

    def member_of(self, run_id: str) -> str | None:
        child = self._child(run_id)
        return None if child is None else child.member_of

    def position_of(self, run_id: str) -> int:
        child = self._child(run_id)
        assert child is not None, f"{run_id} is not a child"
        return child.position

    def states_in(self, group_id: str, run_ids: Sequence[str]) -> dict[str, str]:
        return {each: str(self.runs[each].state) for each in run_ids if self.member_of(each) == group_id}

    def take_out(self, run_ids: Collection[str]) -> None:
        for each in run_ids:
            if (child := self._child(each)) is not None:
                self._children[child.parent_id][each] = replace(child, member_of=None)

    def known(self, run_ids: Sequence[str]) -> set[str]:
        return {each for each in run_ids if self._child(each) is not None}

    # -- turns

    def wait(self, group_id: str, turns: Sequence[Turn]) -> None:
        self._turns.setdefault(group_id, {}).update({each.run_id: each for each in turns})

    def first_turns(self, group_id: str, most: int) -> list[Turn]:
        return sorted(self._turns.get(group_id, {}).values(), key=lambda each: each.position)[:most]

    def end_turns(self, run_ids: Collection[str]) -> set[str]:
        return {run_id for run_id in run_ids for turns in self._turns.values() if turns.pop(run_id, None) is not None}

    def waits(self, run_id: str) -> bool:
        return any(run_id in turns for turns in self._turns.values())

    def begin(self, turns: Sequence[Turn], now: datetime) -> list[RunRecord]:
        begun = [(self.runs[turn.run_id], turn.due_at) for turn in turns]
        for run, due_at in begun:
            self.runs[run.id] = replace(run, wake_at=begins_at(run, due_at, now))
        return [run for run, _ in begun]

    # -- children

    def add(self, child: ChildRecord, *, is_new: bool) -> None:
        """Record a child. Raises ChildIdTaken if the run exists and is not a child of this parent."""
        known = self._children.setdefault(child.parent_id, {})
        if not is_new and child.run_id not in known:
            raise ChildIdTaken(child.run_id)
        known.setdefault(child.run_id, child)

    def run(self, run_id: str) -> RunRecord | None:
        return self.runs.get(run_id)

    def relations(self, run: RunRecord) -> tuple[bool, bool]:
        return self._child(run.id) is not None, self.has_any(run.id)

    def update(self, before: RunRecord, after: RunRecord) -> None:
        self.runs[before.id] = after

    def cancellable(self, parents: Mapping[str, RunRecord], most: int) -> list[tuple[RunRecord, str]]:
        found = ((run, parent.id) for parent in parents.values() for run in self._cancellable(parent))
        return [each for each, _ in zip(found, range(most), strict=False)]

    def note_left(self, parents: Mapping[str, RunRecord], at: datetime) -> None:
        for parent in parents.values():
            if self._cancellable(parent):
                self._left.setdefault(parent.id, at)
            else:
                self._left.pop(parent.id, None)

    def next_left(self, after: str) -> str | None:
        return min((each for each in self._left if each > after), default=None)

    def below(self, parent_id: str, places: tuple[str, ...]) -> list[str]:
        found = (each for each in self._in_order(parent_id) if places and each.location.startswith(places))
        return [each.run_id for each in found if self.runs[each.run_id].state not in ENDED]

    def drop(self, parent_id: str, run_ids: Sequence[str], *, every: bool) -> bool:
        known = self._children.get(parent_id, {})
        own = [known[each] for each in run_ids if each in known]
        dropped = {each.run_id for each in own if every or each.when_parent_ends == WhenParentEnds.CANCEL}
        self._dropped |= dropped
        return bool(dropped)

    def of_runs(self, run_ids: Sequence[str]) -> dict[str, ChildRecord]:
        return {each: child for each in run_ids if (child := self._child(each)) is not None}

    def children_of(self, parent_id: str, state: str | None, group: str | None) -> list[str]:
        return [
            each.run_id
            for each in self._in_order(parent_id)
            if state in (None, self.runs[each.run_id].state) and group in (None, each.group)
        ]

    def count(self, parent_id: str, group: str | None) -> dict[str, int]:
        found = (each for each in self._in_order(parent_id) if group in (None, each.group))
        return dict(Counter(str(self.runs[each.run_id].state) for each in found))

    def has_any(self, parent_id: str) -> bool:
        return bool(self._children.get(parent_id))

    def number_below(self, parent_id: str, place: str) -> dict[str, int]:
        found = (each.run_id for each in self._in_order(parent_id) if each.location.startswith(place))
        return dict(Counter(self.runs[each].workflow for each in found))

    def note_reader(self, run_id: str, children: Sequence[str]) -> None:
        for child in children:
            self._readers.setdefault(child, set()).add(run_id)

    def readers_of(self, child_id: str) -> list[str]:
        found = self._readers.get(child_id, ())
        return sorted(each for each in found if each in self.runs and self.runs[each].state not in ENDED)

    def left(self, run_ids: Sequence[str], most: int) -> dict[str, int]:
        noted = [each for each in run_ids if each in self._left and each in self.runs]
        return {each: min(len(self._cancellable(self.runs[each])), most + 1) for each in noted}

    def due(self, batch: Batch) -> RunRecord | None:
        """Return the run, due at once, if it parks for a child that has ended or is gone, or for a settled group; else
        None.

        None for any other.
        """
        run = self.runs[batch.run_id]
        found = (self.runs.get(each) for each in batch.awaited_children)
        has_ended = any(child is None or child.state in ENDED for child in found)
        is_due = run.state not in ENDED and (has_ended or self.is_one_settled(batch.awaited_groups))
        return replace(run, wake_at=batch.now) if is_due else None

    def _child(self, run_id: str) -> ChildRecord | None:
        run = self.runs.get(run_id)
        return None if run is None else self._children.get(run.parent_id or "", {}).get(run_id)

    def _cancellable(self, parent: RunRecord) -> list[RunRecord]:
        """Return the children of this parent that are still to be cancelled."""
        wanted = [
            self.runs[each.run_id]
            for each in self._in_order(parent.id)
            if each.run_id in self._dropped
            or ((group := self._groups.get(each.member_of or "")) is not None and group.is_dropped)
            or (parent.state in ENDED and each.when_parent_ends == WhenParentEnds.CANCEL)
        ]
        return [each for each in wanted if not row_rules.is_ending(each)]

    def _in_order(self, parent_id: str) -> list[ChildRecord]:
        return sorted(
            self._children.get(parent_id, {}).values(), key=lambda each: (each.position, each.generation, each.run_id)
        )


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
