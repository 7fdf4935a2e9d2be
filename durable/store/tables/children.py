"""Children and their groups in a database: the rows for `durable.store.rules.child_rules`, and queries of them.

On PostgreSQL, database functions apply the end of a run (`routines/ending.sql`, `routines/groups.sql`). The group
changes of a parent's commit or verb are the same on both databases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from durable.core.records import ENDED, GroupRecord, GroupSpec, Member, RunRecord, RunState, WhenHeld, WhenParentEnds
from durable.models import Cascade, Child, ChildGroup, Failure, GroupTally, Run, WorkflowEnd
from durable.models import Turn as TurnRow
from durable.store.rules import row_rules
from durable.store.rules.child_rules import COUNTS, Turn, begins_at, places, turned
from durable.store.tables import keys, rates, slots
from durable.store.tables.rows import run_records

_AT_ONCE = 500  # rows in an insert


class DatabaseChildren:
    """A `durable.store.rules.child_rules.ChildTable` in a database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._runs = Run.objects.using(alias)
        self._children = Child.objects.using(alias)
        self._groups = ChildGroup.objects.using(alias)
        self._tallies = GroupTally.objects.using(alias)
        self._turns = TurnRow.objects.using(alias)
        self._left = Cascade.objects.using(alias)

    # -- groups

    def get(self, group_id: str) -> GroupRecord | None:
        return next(iter(self._recorded(self._groups.filter(id=group_id))), None)

    def of_parent(self, parent_id: str) -> list[GroupRecord]:
        return self._recorded(self._groups.filter(parent_id=parent_id).order_by("position"))

    def members(self, group_id: str, after: int, count: int, *, is_lost: bool) -> list[Member]:
        parents = list(self._groups.filter(id=group_id).values_list("parent_id", flat=True))
        found = self._children.filter(parent_id__in=parents, member_of=group_id, position__gt=after, run__isnull=False)
        if is_lost:
            asked = Q(run__pending_request__in=row_rules.CANCELLING)
            found = found.filter(Q(run__state=RunState.CANCELLED.value) | asked)
        columns = ("state", "output", "error", "request_reason", "pending_request")
        rows = found.order_by("position").values_list(
            "position", "run_id", "generation", *(f"run__{name}" for name in columns)
        )
        return [Member(*row) for row in rows[:count]]

    def is_one_settled(self, awaited: Sequence[str]) -> bool:
        """Return True if one of these groups is settled, or is gone."""
        found = self._recorded(self._groups.filter(id__in=awaited)) if awaited else []
        return len(found) < len(awaited) or any(each.is_settled for each in found)

    def _recorded(self, found: QuerySet[ChildGroup]) -> list[GroupRecord]:
        return [self._group(group, group.tally) for group in found.select_related("tally")]

    def _group(self, group: ChildGroup, tally: GroupTally) -> GroupRecord:
        counts = {name: getattr(tally, name) for name in COUNTS}
        spec = group.spec
        held = self._held(spec) if spec.when_held == WhenHeld.FREE else 0
        return GroupRecord(spec=spec, is_over=group.is_over, is_dropped=group.is_dropped, held=held, **counts)

    def _held(self, spec: GroupSpec) -> int:
        held = Failure.objects.using(self._alias).filter(parent_id=spec.parent_id, is_held=True)
        return self._children.filter(run_id__in=held.values("run_id"), member_of=spec.id).count()

    def lock(self, group_ids: Iterable[str]) -> None:
        """Lock the tallies of these groups, if they exist, before the row of their parent is locked."""
        if wanted := sorted(set(group_ids)):
            self._locked(wanted)

    def _locked(self, group_ids: Sequence[str], *, skip: bool = False) -> list[GroupTally]:
        found = self._tallies.filter(group_id__in=group_ids).order_by("group_id")
        return list(found.select_for_update(no_key=True, skip_locked=skip))

    def make(self, spec: GroupSpec) -> None:
        self._groups.bulk_create([ChildGroup.of(spec)], ignore_conflicts=True)
        self._tallies.bulk_create([GroupTally(group_id=spec.id)], ignore_conflicts=True)

    def counted(self, group_id: str) -> GroupRecord | None:
        tallies = self._locked([group_id])
        group = self._groups.filter(id=group_id).first()
        return self._group(group, tallies[0]) if tallies and group is not None else None

    def write(self, before: GroupRecord, after: GroupRecord) -> None:
        changed = {name: getattr(after, name) for name in COUNTS if getattr(after, name) != getattr(before, name)}
        if changed:
            self._tallies.filter(group_id=before.spec.id).update(**changed)

    def decide(self, parent_id: str, group_id: str, *, is_over: bool, is_dropped: bool | None) -> None:
        decided = {"is_over": is_over} if is_dropped is None else {"is_over": is_over, "is_dropped": is_dropped}
        self._groups.filter(id=group_id, parent_id=parent_id).update(**decided)

    def member_of(self, run_id: str) -> str | None:
        return self._children.filter(run_id=run_id).values_list("member_of", flat=True).first()

    def position_of(self, run_id: str) -> int:
        return self._children.values_list("position", flat=True).get(run_id=run_id)

    def states_in(self, group_id: str, run_ids: Sequence[str]) -> dict[str, str]:
        found = self._children.filter(run_id__in=run_ids, member_of=group_id)
        return dict(found.values_list("run_id", "run__state"))

    def take_out(self, run_ids: Collection[str]) -> None:
        self._children.filter(run_id__in=list(run_ids)).update(member_of=None)

    def known(self, run_ids: Sequence[str]) -> set[str]:
        return set(self._children.filter(run_id__in=run_ids).values_list("run_id", flat=True))

    # -- turns

    def wait(self, group_id: str, turns: Sequence[Turn]) -> None:
        if turns:
            rows = [TurnRow(group_id=group_id, **each._asdict()) for each in turns]
            self._turns.bulk_create(rows, batch_size=_AT_ONCE)
            first = min(each.position for each in turns)
            self._tallies.filter(group_id=group_id, turns_from__gt=first).update(turns_from=first)

    def first_turns(self, group_id: str, most: int) -> list[Turn]:
        found = self._turns.filter(group_id=group_id).order_by("position")
        return [Turn(*row) for row in found.values_list(*Turn._fields)[:most]]

    def end_turns(self, run_ids: Collection[str]) -> set[str]:
        turns = self._turns.filter(run_id__in=list(run_ids))
        found = set(turns.values_list("run_id", flat=True)) if run_ids else set()
        if found:
            turns.delete()
        return found

    def waits(self, run_id: str) -> bool:
        return self._turns.filter(run_id=run_id).exists()

    def begin(self, turns: Sequence[Turn], now: datetime) -> list[RunRecord]:
        due_at = {turn.run_id: turn.due_at for turn in turns}
        rows = self._runs.filter(id__in=list(due_at)).order_by("id")
        begun = run_records(rows.select_for_update(no_key=True, skip_locked=True))
        for run in begun:
            self._runs.filter(id=run.id).update(wake_at=begins_at(run, due_at[run.id], now))
        return begun

    def give_turns(self, after: str, now: datetime) -> tuple[str, frozenset[str]] | None:
        """Let children of the first group after `after` begin that have their turn.

        Return that group, and the queues to notify. The end of a child skips children whose rows another transaction
        has locked. If that was the last child, no other end starts them.
        """
        waiting = self._turns.filter(group_id__gt=after).order_by("group_id")
        group_id = waiting.values_list("group_id", flat=True).first()
        if group_id is None:
            return None
        seen = self.get(group_id)
        if seen is None or seen.is_over or not places(seen) or not self._locked([group_id], skip=True):
            return group_id, frozenset()
        group = self.counted(group_id)
        return group_id, frozenset() if group is None else turned(self, group, now)

    # -- children

    def run(self, run_id: str) -> RunRecord | None:
        return next(iter(run_records(self._runs.filter(id=run_id))), None)

    def relations(self, run: RunRecord) -> tuple[bool, bool]:
        found = self._children.filter(Q(run_id=run.id) | Q(parent_id=run.id)).order_by()
        parents = set(found.values_list("parent_id", flat=True).distinct())
        return run.parent_id in parents, run.id in parents

    def update(self, before: RunRecord, after: RunRecord) -> None:
        if changed := row_rules.changed_columns(before, after):
            self._runs.filter(id=before.id).update(**changed)

    def with_end(self, workflows: Collection[str]) -> set[str]:
        found = WorkflowEnd.objects.using(self._alias).filter(workflow__in=list(workflows))
        return set(found.values_list("workflow", flat=True))

    def free(self, run_id: str) -> None:
        keys.close(self._alias, run_id)
        Failure.held_no_more(self._alias, run_id)
        slots.note_end(self._alias, run_id)
        rates.forget(self._alias, run_id)

    def cancellable(self, parents: Mapping[str, RunRecord], most: int) -> list[tuple[RunRecord, str]]:
        found = self._cancellable(list(parents), [run.id for run in parents.values() if run.state in ENDED])
        parent_of = dict(found.order_by("position").values_list("run_id", "parent_id")[:most])
        return [(run, parent_of[run.id]) for run in run_records(self._runs.with_ids(list(parent_of)))]

    def note_left(self, parents: Mapping[str, RunRecord], at: datetime) -> None:
        found = self._cancellable(list(parents), [run.id for run in parents.values() if run.state in ENDED])
        left = set(found.values_list("parent_id", flat=True).distinct())
        self._left.filter(run_id__in=set(parents) - left).delete()
        known = set(self._left.filter(run_id__in=left).values_list("run_id", flat=True)) if left else set()
        self._left.bulk_create(Cascade(run_id=each, began_at=at) for each in sorted(left - known))

    def next_left(self, after: str) -> str | None:
        return self._left.filter(run_id__gt=after).order_by("run_id").values_list("run_id", flat=True).first()

    def below(self, parent_id: str, places: tuple[str, ...]) -> list[str]:
        children = self._children.filter(parent_id=parent_id, run__finished_at__isnull=True)
        found = children.order_by("position").values_list("run_id", "location")
        return [run_id for run_id, location in found if location.startswith(places)]

    def drop(self, parent_id: str, run_ids: Sequence[str], *, every: bool) -> bool:
        dropped = self._children.filter(run_id__in=run_ids, parent_id=parent_id)
        if not every:
            dropped = dropped.filter(when_parent_ends=WhenParentEnds.CANCEL.value)
        return bool(dropped.update(is_dropped=True))

    def number_below(self, parent_id: str, place: str) -> dict[str, int]:
        children = self._children.filter(parent_id=parent_id, location__gt=place)
        below = children.filter(location__lt=f"{place.removesuffix('/')}0")  # "0" follows "/"
        counted = below.order_by().values("run__workflow").annotate(number=Count("pk"))
        return dict(counted.values_list("run__workflow", "number"))

    def left(self, run_ids: Sequence[str], most: int) -> dict[str, int]:
        noted = self._left.filter(run_id__in=list(run_ids)).values_list("run_id", "run__state")
        return {
            run_id: self._cancellable([run_id], [run_id] if state in ENDED else []).values("pk")[: most + 1].count()
            for run_id, state in noted
        }

    def _cancellable(self, parents: list[str], ended: list[str]) -> QuerySet[Child]:
        """Return the children of these ended parents that are still to be cancelled."""
        asked = Q(run__pending_request__in=row_rules.CANCELLING)
        ending = Q(run__state__in=[each.value for each in row_rules.ENDING]) | ~Q(run__state_after_rollback="") | asked
        dropped = ChildGroup.objects.using(self._alias).filter(parent_id__in=parents, is_dropped=True).values("id")
        wanted = (
            Q(is_dropped=True)
            | Q(member_of__in=dropped)
            | Q(parent_id__in=ended, when_parent_ends=WhenParentEnds.CANCEL.value)
        )
        return self._children.filter(wanted, parent_id__in=parents).exclude(ending)
