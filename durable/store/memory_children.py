"""The children of runs in `durable.store.memory`, and what the end of a parent does to them.

What `durable.store.endings` is for databases. The store holds its lock around each call, and passes its runs, whose
rows are replaced here where a child or a parent changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.child_entries import divided
from durable.core.records import ENDED, Batch, ChildRecord, GroupChange, RunRecord, WhenParentEnds
from durable.store import row_rules
from durable.store.base import ChildIdTaken
from durable.store.memory_groups import MemoryGroups

Runs = dict[str, RunRecord]


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
