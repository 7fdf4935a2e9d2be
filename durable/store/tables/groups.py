"""Groups of children in a database: their counts, and whose turn it is.

The row of a group is written under the lock of its parent's row. Its tally has a lock of its own, which the end of each
child takes after the child's row; a commit of the parent that changes a group takes it before the parent's row. So
a transaction that has a parent's row locked never waits for a tally: the end of a parent leaves what is locked to the
sweep.

On PostgreSQL `routines/groups.sql` counts the ends. Must not decide anything: `durable.store.rules.group_rules`
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q, QuerySet

from durable.core.records import ENDED, ChildStart, GroupChange, GroupRecord, Member, RunRecord, RunState
from durable.core.time_limits import NewRun
from durable.models import Child, ChildGroup, GroupTally, Run, Turn
from durable.store.base import ChildIdTaken
from durable.store.rules import group_rules
from durable.store.rules.row_rules import CANCELLING
from durable.store.tables import ranks
from durable.store.tables.rows import CHILD, RUN

#: Inserts runs, and returns each with whether it is new (`Store.create`).
Create = Callable[[Sequence[RunRecord]], list[tuple[RunRecord, bool]]]

_AT_ONCE = 500  # rows in an insert


class Counted(NamedTuple):
    """The effect of the end of a child: the group if its parent is to be woken, and the queues to notify.

    Those are the queues of the children that begin, the child's own too.
    """

    is_member: bool = True
    settled: str | None = None
    queues: frozenset[str] = frozenset()


# -- reading


def get(alias: str, group_id: str) -> GroupRecord | None:
    """Return the group with its counts, or None."""
    return next(iter(_records(ChildGroup.objects.using(alias).filter(id=group_id))), None)


def of_parent(alias: str, parent_id: str) -> list[GroupRecord]:
    """Return the groups of a run's children, in their order."""
    return _records(ChildGroup.objects.using(alias).filter(parent_id=parent_id).order_by("position"))


def members(alias: str, group_id: str, after: int, count: int, *, is_lost: bool) -> list[Member]:
    """Return the children of a group behind a position, in order (`Store.members`)."""
    group = ChildGroup.objects.using(alias).filter(id=group_id).values_list("parent_id", flat=True)
    found = Child.objects.using(alias).filter(
        parent_id__in=list(group), member_of=group_id, position__gt=after, run__isnull=False
    )
    if is_lost:
        found = found.filter(Q(run__state=RunState.CANCELLED.value) | Q(run__pending_request__in=CANCELLING))
    columns = ("state", "output", "error", "request_reason", "pending_request")
    rows = found.order_by("position").values_list(
        "position", "run_id", "generation", *(f"run__{name}" for name in columns)
    )
    return [Member(*row) for row in rows[:count]]


def is_one_settled(alias: str, awaited: Sequence[str]) -> bool:
    """Return True if one of these groups is settled, or is gone."""
    found = _records(ChildGroup.objects.using(alias).filter(id__in=awaited)) if awaited else []
    return len(found) < len(awaited) or any(each.is_settled for each in found)


def _records(groups: QuerySet[ChildGroup]) -> list[GroupRecord]:
    return [_record(group, group.tally) for group in groups.select_related("tally")]


def _record(group: ChildGroup, tally: GroupTally) -> GroupRecord:
    counts = {name: getattr(tally, name) for name in group_rules.COUNTS}
    return GroupRecord(spec=group.spec, is_over=group.is_over, is_dropped=group.is_dropped, **counts)


# -- locks


def lock(alias: str, group_ids: Iterable[str]) -> None:
    """Lock the tallies of these groups, as far as they are there, before the row of their parent is locked."""
    if wanted := sorted(set(group_ids)):
        _locked(alias, wanted)


def _locked(alias: str, group_ids: Sequence[str], *, skip: bool = False) -> list[GroupTally]:
    found = GroupTally.objects.using(alias).filter(group_id__in=group_ids).order_by("group_id")
    return list(found.select_for_update(no_key=True, skip_locked=skip))  # SQLite has no locks of rows to take


def _counted(alias: str, group_id: str) -> GroupRecord | None:
    """Return the group, with its tally locked."""
    [*tallies] = _locked(alias, [group_id])
    group = ChildGroup.objects.using(alias).filter(id=group_id).first()
    return _record(group, tallies[0]) if tallies and group is not None else None


def _write(alias: str, before: GroupRecord, after: GroupRecord) -> None:
    changed = {
        name: getattr(after, name) for name in group_rules.COUNTS if getattr(after, name) != getattr(before, name)
    }
    if changed:
        GroupTally.objects.using(alias).filter(group_id=before.spec.id).update(**changed)


# -- a commit of the parent


def apply(alias: str, parent_id: str, change: GroupChange, create: Create, now: datetime) -> frozenset[str]:
    """Make the group, or the children, of a change; return the queues to notify. The parent's row is locked.

    What an earlier try of the same commit has made stays as it is. Raises ChildIdTaken.
    """
    if change.new is not None:
        spec = {name: getattr(change.new, name) for name in change.new.__slots__}
        ChildGroup.objects.using(alias).bulk_create([ChildGroup(**spec)], ignore_conflicts=True)
        GroupTally.objects.using(alias).bulk_create([GroupTally(group_id=change.id)], ignore_conflicts=True)
    before = _counted(alias, change.id)
    if before is None or before.spec.parent_id != parent_id:  # a replay has the groups of its original in its history
        return frozenset()
    starts, group = _to_start(alias, before, change)
    mark(alias, parent_id, change)
    if change.is_continued:
        group = group_rules.continued(group)
    group, queues = _started(alias, group, starts, create)
    if not change.is_read:
        group, released = _turned(alias, group, now)
        queues |= released
    _write(alias, before, group)
    return queues


def mark(alias: str, parent_id: str, change: GroupChange) -> None:
    """Note what the parent has decided about a group of its own. Its row is locked."""
    groups = ChildGroup.objects.using(alias).filter(id=change.id, parent_id=parent_id)
    if change.is_continued:
        groups.update(is_over=False, is_dropped=False)
    if change.is_dropped:
        groups.update(is_over=True, is_dropped=True)
    elif change.is_read:
        groups.update(is_over=True)


def _to_start(alias: str, group: GroupRecord, change: GroupChange) -> tuple[list[ChildStart], GroupRecord]:
    """Return the starts of a change that were not made before, and the group without the children that it takes out."""
    states, group = _taken_out(alias, group, [*change.taken_out, *change.renewed])
    if change.renewed:
        pairs = zip(change.renewed, change.starts, strict=True)
        return [start for run_id, start in pairs if run_id in states], group
    if change.is_replacing:
        wanted = [start.run.id for start in change.starts]
        made = set(Child.objects.using(alias).filter(run_id__in=wanted).values_list("run_id", flat=True))
        return [start for start in change.starts if start.run.id not in made], group
    first = change.created - len(change.starts)
    return [each for number, each in enumerate(change.starts, first) if number >= group.created], group


def _taken_out(alias: str, group: GroupRecord, run_ids: Sequence[str]) -> tuple[dict[str, str], GroupRecord]:
    """Take those of these children that are in the group out of it; return their states, and the group without them."""
    if not run_ids:
        return {}, group
    children = Child.objects.using(alias).filter(run_id__in=run_ids, member_of=group.spec.id)
    states = dict(children.values_list("run_id", "run__state"))
    waiting = set(Turn.objects.using(alias).filter(run_id__in=states).values_list("run_id", flat=True))
    Turn.objects.using(alias).filter(run_id__in=waiting).delete()
    children.filter(run_id__in=list(states)).update(member_of=None)
    for run_id, state in states.items():
        group = group_rules.is_counted_out(group, state, had_turn=run_id not in waiting)
    return states, group


def _started(
    alias: str, group: GroupRecord, starts: Sequence[ChildStart], create: Create
) -> tuple[GroupRecord, frozenset[str]]:
    if not starts:
        return group, frozenset()
    group = replace(group, created=group.created + len(starts), waiting=group.waiting + len(starts))
    has_queue = group.waiting > len(starts)
    begin = 0 if has_queue else min(len(starts), group_rules.places(group))
    group = group_rules.after_turns(group, begin)
    ranked = ranks.inheriting(alias, starts)
    runs = ranked[:begin] + [_without_turn(run) for run in ranked[begin:]]
    created = create(runs)
    for run, is_new in created:
        if not is_new:
            raise ChildIdTaken(run.id)
    rows = [Child(**CHILD.attributes(child)) for _, child in starts]
    Child.objects.using(alias).bulk_create(rows, batch_size=_AT_ONCE)
    turns = [
        Turn(run_id=run.id, group_id=group.spec.id, position=child.position, due_at=run.wake_at or run.created_at)
        for run, child in starts[begin:]
    ]
    _wait(alias, turns)
    return group, frozenset(run.queue for run, _ in created[:begin])


def _wait(alias: str, turns: Sequence[Turn]) -> None:
    """Let children of one group wait for these turns. Its tally is locked."""
    if turns:
        Turn.objects.using(alias).bulk_create(turns, batch_size=_AT_ONCE)
        first = min(each.position for each in turns)
        GroupTally.objects.using(alias).filter(group_id=turns[0].group_id, turns_from__gt=first).update(
            turns_from=first
        )


def _without_turn(run: RunRecord) -> RunRecord:
    """Return a new child that waits for its turn: due at its deadline alone."""
    deadline = run.limits.deadline if isinstance(run, NewRun) and run.limits is not None else None
    return replace(run, wake_at=deadline)


# -- turns


def _turned(alias: str, group: GroupRecord, now: datetime) -> tuple[GroupRecord, frozenset[str]]:
    """Let as many of the waiting children begin as there is room for; return the group, and the queues to notify.

    Those whose rows another transaction has locked are passed over.
    """
    if not group.waiting:
        return group, frozenset()
    parent = next(iter(_runs(alias, [group.spec.parent_id])), None)
    room = group_rules.room(group, parent)
    if not room:
        return group, frozenset()
    turns = Turn.objects.using(alias).filter(group_id=group.spec.id).order_by("position")
    wanted = {turn.run_id: turn.due_at for turn in turns[:room]}
    begun = []
    for run in _runs(alias, list(wanted), is_locked=True):
        wake_at = group_rules.begins_at(run, wanted[run.id], now)
        Run.objects.using(alias).filter(id=run.id).update(wake_at=wake_at)
        begun.append(run)
    Turn.objects.using(alias).filter(run_id__in=[run.id for run in begun]).delete()
    return group_rules.after_turns(group, len(begun)), frozenset(run.queue for run in begun)


def give_turns(alias: str, after: str, now: datetime) -> tuple[str, frozenset[str]] | None:
    """Let children of the first group behind `after` begin whose turn has come.

    Return that group, and the queues to notify. The end of a child passes over those whose rows another transaction has
    locked. If that was the last child, no other end of a child looks for them.
    """
    turns = Turn.objects.using(alias).filter(group_id__gt=after).order_by("group_id")
    group_id = turns.values_list("group_id", flat=True).first()
    if group_id is None:
        return None
    seen = _records(ChildGroup.objects.using(alias).filter(id=group_id))
    if not any(group_rules.places(each) and not each.is_over for each in seen):
        return group_id, frozenset()
    if not _locked(alias, [group_id], skip=True):
        return group_id, frozenset()
    before = _counted(alias, group_id)
    if before is None:
        return group_id, frozenset()
    group, queues = _turned(alias, before, now)
    _write(alias, before, group)
    return group_id, queues


def _runs(alias: str, run_ids: Sequence[str], *, is_locked: bool = False) -> list[RunRecord]:
    found = Run.objects.using(alias).filter(id__in=run_ids).order_by("id")
    if is_locked:
        found = found.select_for_update(no_key=True, skip_locked=True)
    return [RunRecord(**row) for row in found.values(*RUN.names)]


def ended(alias: str, run: RunRecord, at: datetime) -> Counted:
    """Count the end of a child in its group, if it is in one, and let the next one begin."""
    group_id = _member_of(alias, run.id)
    if group_id is None:
        return Counted(is_member=False)
    before = _counted(alias, group_id)
    if before is None or _member_of(alias, run.id) != group_id:  # another child has taken its place meanwhile
        return Counted()
    deleted, _ = Turn.objects.using(alias).filter(run_id=run.id).delete()
    after = group_rules.after_end(before, str(run.state), had_turn=not deleted)
    after, queues = _turned(alias, after, at)
    _write(alias, before, after)
    return Counted(settled=group_id if group_rules.wakes(before, after) else None, queues=queues)


def held_back(alias: str, before: RunRecord, after: RunRecord, now: datetime) -> RunRecord:
    """Return a child after a verb, without what would let it begin before its turn. Its row is locked."""
    group_id = _member_of(alias, before.id)
    if group_id is None:
        return after
    turns = Turn.objects.using(alias).filter(run_id=before.id)
    if before.state in ENDED and after.state not in ENDED:
        counted = _counted(alias, group_id)
        if counted is None or _member_of(alias, before.id) != group_id:
            return after
        group, waits = group_rules.counted_again(counted, str(before.state), after.state)
        _write(alias, counted, group)
        if waits:
            position = Child.objects.using(alias).values_list("position", flat=True).get(run_id=before.id)
            _wait(alias, [Turn(run_id=before.id, group_id=group_id, position=position, due_at=after.wake_at or now)])
    elif after.state == RunState.ROLLING_BACK and turns.exists():
        counted = _counted(alias, group_id)
        if counted is not None and turns.delete()[0]:
            _write(alias, counted, group_rules.after_turns(counted, 1))
    is_waiting = after.state not in ENDED and after.wake_at is not None and turns.exists()
    return replace(after, wake_at=None) if is_waiting else after


def _member_of(alias: str, run_id: str) -> str | None:
    return Child.objects.using(alias).filter(run_id=run_id).values_list("member_of", flat=True).first()
