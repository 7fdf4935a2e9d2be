"""The end of a run on SQLite: what `routines/ending.sql` does on PostgreSQL.

The run's key is free again, the parent that waits for the run is woken, and the run's open children are cancelled. The
store calls it for each update that ends a run. What is read of children is the same on both databases. Must not decide
what becomes of a row: `durable.store.rules.row_rules` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from durable.core.child_entries import divided
from durable.core.records import ENDED, RunRecord, RunState, WhenParentEnds
from durable.models import Cascade, Child, ChildGroup, Run
from durable.models.run import RunQuerySet
from durable.store.base import MessagesLeft
from durable.store.rules import row_rules
from durable.store.tables import groups, keys, rates, slots
from durable.store.tables.rows import RUN

_AT_ONCE = row_rules.CASCADED_AT_ONCE


def ended(alias: str, run: RunRecord) -> frozenset[str]:
    """Do what follows from the end of this run, whose row is written; return the queues to notify.

    Raises MessagesLeft for a completed run that has not received all that was sent to its key.
    """
    if keys.close(alias, run.id) and run.state == RunState.COMPLETED and keys.unreceived(alias, run.id):
        raise MessagesLeft
    slots.note_end(alias, run.id)
    rates.forget(alias, run.id)
    children = Child.objects.using(alias)
    found = set(children.filter(Q(run_id=run.id) | Q(parent_id=run.id)).values_list("parent_id", flat=True)[:2])
    queues = _count(alias, run) if run.parent_id in found else frozenset()
    if run.id in found:
        end_children(alias, run, row_rules.end_of(run))
    return queues


def _count(alias: str, child: RunRecord) -> frozenset[str]:
    """Count the end of a child in its group, if it is in one; wake the parent that waits for the one or the other.

    Return the queues to notify of turns that have come.
    """
    is_member, settled, queues = groups.ended(alias, child, row_rules.end_of(child))
    if is_member and settled is None:
        return queues
    for parent in _records(Run.objects.using(alias).filter(id=child.parent_id)):
        if settled is None:
            after = row_rules.after_child(parent, child)
        else:
            after = row_rules.after_group(parent, settled, row_rules.end_of(child))
        if changed := row_rules.changed_columns(parent, after):
            Run.objects.using(alias).filter(id=parent.id).update(**changed)
    return queues


def end_children(alias: str, run: RunRecord, at: datetime) -> int:
    """Cancel the children of a run that are to be cancelled, and theirs.

    Return how many were cancelled or asked to end. That is a bounded number: the others are noted for the sweep.
    """
    number = 0
    parents: Mapping[str, RunRecord] = {run.id: run}
    while parents:
        open_ones = _cancellable(alias, parents).order_by("position").values_list("run_id", "parent_id")
        parent_of = dict(open_ones[: _AT_ONCE - number])
        gone: dict[str, RunRecord] = {}
        for child in _records(Run.objects.using(alias).with_ids(list(parent_of))):
            after = row_rules.after_parent(child, parents[parent_of[child.id]], at)
            number += 1
            Run.objects.using(alias).filter(id=child.id).update(**row_rules.changed_columns(child, after))
            if after.state in ENDED:
                gone[child.id] = after
                keys.close(alias, child.id)
                slots.note_end(alias, child.id)
                rates.forget(alias, child.id)
                groups.ended(alias, after, at)
        _note(alias, parents, set(_cancellable(alias, parents).values_list("parent_id", flat=True).distinct()), at)
        parents = gone
    return number


def cascaded(alias: str, after: str, at: datetime) -> tuple[str, int] | None:
    """Go on with the children of the first parent behind this one whose end has left some (`Store.cascade`)."""
    waiting = Cascade.objects.using(alias).filter(run_id__gt=after).order_by("run_id")
    run_id = waiting.values_list("run_id", flat=True).first()
    if run_id is None:
        return None
    [run] = _records(Run.objects.using(alias).filter(id=run_id))
    return run_id, end_children(alias, run, at)


def drop(alias: str, run: RunRecord, children: Sequence[str], at: datetime, *, every: bool) -> None:
    """Cancel these children of a run that goes on, and the open ones that were started below the places among them.

    Unless `every`, not those that go on after its end.
    """
    ids, places = divided(children)
    if places:
        ids += started_below(alias, run.id, places)
    dropped = Child.objects.using(alias).filter(run_id__in=ids, parent_id=run.id)
    if not every:
        dropped = dropped.filter(when_parent_ends=WhenParentEnds.CANCEL.value)
    if dropped.update(is_dropped=True):
        end_children(alias, run, at)


def started_below(alias: str, parent_id: str, places: tuple[str, ...]) -> list[str]:
    """Return the open children of a run that were started below these places."""
    children = Child.objects.using(alias).filter(parent_id=parent_id, run__finished_at__isnull=True)
    found = children.order_by("position").values_list("run_id", "location")
    return [run_id for run_id, location in found if location.startswith(places)]


def number_below(alias: str, parent_id: str, place: str) -> dict[str, int]:
    """Return how many children of a run were started below this place, by workflow."""
    children = Child.objects.using(alias).filter(parent_id=parent_id, location__gt=place)
    below = children.filter(location__lt=f"{place.removesuffix('/')}0")  # "0" follows "/"
    counted = below.order_by().values("run__workflow").annotate(number=Count("pk"))
    return dict(counted.values_list("run__workflow", "number"))


def left(alias: str, run_ids: Sequence[str], most: int) -> dict[str, int]:
    """Return how many children of each of these parents are left for the sweep, if some are (`Store.children_left`)."""
    noted = Cascade.objects.using(alias).filter(run_id__in=list(run_ids)).values_list("run_id", "run__state")
    return {
        run_id: _cancellable_of(alias, [run_id], [run_id] if state in ENDED else []).values("pk")[: most + 1].count()
        for run_id, state in noted
    }


def _cancellable(alias: str, parents: Mapping[str, RunRecord]) -> QuerySet[Child]:
    """Return the children of these parents that are to be cancelled and are not yet."""
    return _cancellable_of(alias, list(parents), [run.id for run in parents.values() if run.state in ENDED])


def _cancellable_of(alias: str, parents: list[str], ended: list[str]) -> QuerySet[Child]:
    """Return the same, given the ids of the parents, and of those that have ended."""
    asked = Q(run__pending_request__in=row_rules.CANCELLING)
    ending = Q(run__state__in=[each.value for each in row_rules.ENDING]) | ~Q(run__state_after_rollback="") | asked
    dropped = ChildGroup.objects.using(alias).filter(parent_id__in=parents, is_dropped=True).values("id")
    wanted = (
        Q(is_dropped=True)
        | Q(member_of__in=dropped)
        | Q(parent_id__in=ended, when_parent_ends=WhenParentEnds.CANCEL.value)
    )
    return Child.objects.using(alias).filter(wanted, parent_id__in=parents).exclude(ending)


def _note(alias: str, parents: Iterable[str], left: set[str], at: datetime) -> None:
    """Note the parents that have children left for the sweep, and no others."""
    rows = Cascade.objects.using(alias)
    rows.filter(run_id__in=set(parents) - left).delete()
    known = set(rows.filter(run_id__in=left).values_list("run_id", flat=True)) if left else set()
    rows.bulk_create(Cascade(run_id=each, began_at=at) for each in sorted(left - known))


def _records(runs: RunQuerySet) -> list[RunRecord]:
    return [RunRecord(**row) for row in runs.values(*RUN.names)]
