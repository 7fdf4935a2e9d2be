"""Families: a run's parents up to the root, and its children by state and group.

Every count and page follows the index of a parent's children, or stops at a cap: a run may have any number of them.
`within` limits the runs, for example to those that a user may see: others are neither listed nor counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db.models import F, OuterRef, QuerySet, Subquery

from durable.conf import conf
from durable.core.ids import MAX_ID
from durable.core.records import ENDED, RunState
from durable.core.tally import Tally
from durable.inspection.capped_counts import Count, cross_tally
from durable.models import Child, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP: Final = 10_000  # children of a run that are counted, and that one page examines
PAGE: Final = 50
MOST_PARENTS: Final = 20  # of the chain up to the root
_FAILED: Final = RunState.FAILED.value
_DIGITS: Final = 18  # of a position
_PARENT: Final = "parent"  # the cursor of a bulk before its last page


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The children of a group by state; `name` is the group's location, "" for children that belong to none."""

    name: str
    states: Mapping[str, int]

    @property
    def total(self) -> int:
        """The number of the group's children that were counted."""
        return sum(self.states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCounts:
    """The children of a run by group and state.

    `is_capped`: there are more than the first `CAP`, which were counted.
    """

    groups: Sequence[GroupCounts]
    is_capped: bool = False

    @property
    def states(self) -> dict[str, int]:
        """The numbers by state, in the order of `RunState`; states without children are left out."""
        numbers: Counter[str] = Counter()
        for group in self.groups:
            numbers.update(group.states)
        return {each.value: numbers[each.value] for each in RunState if numbers[each.value]}

    @property
    def total(self) -> Count:
        """The number of children."""
        return Count(number=sum(group.total for group in self.groups), is_capped=self.is_capped)

    @property
    def failed(self) -> Count:
        """The number of failed children."""
        return Count(number=self.states.get(_FAILED, 0), is_capped=self.is_capped)

    @property
    def is_settled(self) -> bool:
        """Whether all that were counted have ended."""
        return not any(each not in ENDED for each in self.states)

    def __bool__(self) -> bool:
        return bool(self.groups)


class ChildCursor(NamedTuple):
    """The position of a child in the order of starts.

    A child that was started anew may have the position of the one before.
    """

    position: int
    run_id: str

    def __str__(self) -> str:
        return f"{self.position}:{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> ChildCursor | None:
        """Return the key of a text, None for a text that is none. Without an id it is before all at its position."""
        position, _, run_id = text.partition(":")
        is_number = position.isascii() and position.isdigit() and len(position) <= _DIGITS
        return cls(int(position), run_id.replace("\0", "")[:MAX_ID]) if is_number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRow:
    """A child, and where its parent has started it: the location and, if it belongs to one, the group."""

    run: Run
    location: str
    group: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPage:
    """A page of children in the order of their starts.

    The next page is behind `next_key`, which is None at the end. `is_window`: the page is short because `CAP` children
    were examined for it; more may follow.
    """

    rows: Sequence[ChildRow]
    next_key: ChildCursor | None = None
    is_window: bool = False


def has_children() -> bool:
    """Return whether any run is a child: without one a list of roots has nothing to leave out. One look at an index."""
    return Child.objects.using(conf.DATABASE).order_by("pk").values_list("pk").first() is not None


def is_child(run_id: str) -> bool:
    """Return whether the code of another run has started the run as its own; not so for one that a step has started."""
    return Child.objects.using(conf.DATABASE).filter(pk=run_id).exists()


def list_parents(run: Run, within: RunQuerySet | None = None) -> list[Run]:
    """Return the run's parents, the root first, up to `MOST_PARENTS`; one statement for each, none for a root.

    The chain ends before a run that `within` leaves out.
    """
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    chain: list[Run] = []
    above = run.parent_id
    while above is not None and len(chain) < MOST_PARENTS:
        found = runs.filter(pk=above).only("id", "workflow", "state", "summary", "parent").first()
        if found is None:
            break
        chain.insert(0, found)
        above = found.parent_id
    return chain


def count_children(run_id: str, within: RunQuerySet | None = None) -> FamilyCounts:
    """Return the run's children by group and state, the first `CAP` of them; one statement."""
    children = _children(run_id, within).annotate(of_group=F("group")).order_by("position")
    numbers: dict[str, dict[str, int]] = {}
    counted = 0
    for group, state, number in cross_tally(children, ["of_group", "in_state"], CAP + 1):
        numbers.setdefault("" if group is None else unpack(group), {})[state] = number
        counted += number
    groups = [GroupCounts(name=name, states=states) for name, states in sorted(numbers.items())]
    return FamilyCounts(groups=groups, is_capped=counted > CAP)


def list_children(
    run_id: str,
    *,
    states: Collection[str] = (),
    group: str | None = None,
    after: ChildCursor | None = None,
    limit: int = PAGE,
    within: RunQuerySet | None = None,
) -> ChildPage:
    """Return a page of the run's children behind the key `after`, in the order of their starts.

    With `states`, those that are in one of them; with a `group`, those of the group at this location. Three statements.
    """
    children = _behind(_children(run_id, within), after).order_by("position", "pk")
    end: int | None = None
    found = children
    if states or group is not None or within is not None:
        in_order = _behind(_all(run_id), after).order_by("position").values_list("position", flat=True)
        end = in_order[CAP - 1 : CAP].first()
        found = children if end is None else children.filter(position__lte=end)
    if states:
        found = found.filter(in_state__in=sorted(states))
    if group is not None:
        found = found.filter(group=group)
    rows = list(found[: limit + 1])
    runs = Run.objects.using(conf.DATABASE).defer("input", "output").in_bulk([each.run_id for each in rows[:limit]])
    shown = [
        ChildRow(run=runs[each.run_id], location=each.location, group=each.group or "", position=each.position)
        for each in rows[:limit]
        if each.run_id in runs
    ]
    if len(rows) > limit:
        return ChildPage(rows=shown, next_key=ChildCursor(rows[limit - 1].position, rows[limit - 1].run_id))
    return ChildPage(rows=shown, next_key=None if end is None else ChildCursor(end + 1, ""), is_window=end is not None)


def _behind(children: QuerySet[Any], key: ChildCursor | None) -> QuerySet[Any]:
    """Return those of these children of one run that are behind this key."""
    if key is None:
        return children
    # one range of the index, not two
    return children.filter(position__gte=key.position).exclude(position=key.position, pk__lte=key.run_id)


def family_data(counts: FamilyCounts) -> dict[str, Any]:
    """Return the counts of children as data: what REST and the command line have."""
    return {
        "total": counts.total.number,
        "is_capped": counts.is_capped,
        "states": counts.states,
        "groups": [{"group": each.name or None, "states": dict(each.states)} for each in counts.groups],
    }


@dataclass(frozen=True, slots=True)
class FailedChildren:
    """The failed children of a run, and then the run itself if it has failed, as the selection of a bulk.

    With a `group`, its children alone. The run comes last: by then its children go on, and it waits for them again.
    """

    parent: str
    group: str | None = None

    @property
    def total(self) -> int | None:
        """Always None: the runs would have to be counted."""
        return None

    @property
    def is_everything(self) -> bool:
        """Always False: the parent is a condition."""
        return False

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids of children behind `cursor`, and the next cursor; at the end the run alone."""
        if cursor == _PARENT:
            return self._itself(), None
        after = None if cursor is None else ChildCursor.parse(cursor)
        page = list_children(self.parent, states=[_FAILED], group=self.group, after=after, limit=limit)
        ids = [each.run.id for each in page.rows]
        return ids, _PARENT if page.next_key is None else str(page.next_key)

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` ids of them, if failed runs are asked for."""
        if _FAILED not in states:
            return []
        page = list_children(self.parent, states=[_FAILED], group=self.group, limit=limit)
        return [*(each.run.id for each in page.rows), *self._itself()][:limit]

    def tally(self, states: Collection[str], most: int) -> Tally:  # noqa: ARG002  # of a run CAP children are counted
        """Count them by workflow, and the other children by state. Two statements."""
        children = _children(self.parent, None).order_by("position")
        if self.group is not None:
            children = children.filter(group=self.group)
        workflow = Run.objects.using(conf.DATABASE).filter(pk=OuterRef("run_id")).values("workflow")[:1]
        children = children.annotate(of_workflow=Subquery(workflow))
        numbers: Counter[tuple[str, str]] = Counter()
        for state, name, number in cross_tally(children, ["in_state", "of_workflow"], CAP + 1):
            numbers[state, unpack(name) if state in states else ""] += number
        is_partial = numbers.total() > CAP
        itself = Run.objects.using(conf.DATABASE).filter(pk__in=self._itself()).values_list("workflow", flat=True)
        numbers.update((_FAILED, name) for name in itself)
        return Tally(numbers=+numbers, partial=frozenset(RunState) if is_partial else frozenset())

    def failed(self) -> Sequence[tuple[RunQuerySet, bool]]:
        """Return them, as disjoint querysets."""
        runs = Run.objects.using(conf.DATABASE).filter(state=_FAILED)
        children = _all(self.parent).order_by("position")
        if self.group is not None:
            children = children.filter(group=self.group)
        return [(runs.filter(pk__in=children.values("pk")[:CAP]), False), (runs.filter(pk=self.parent), False)]

    def _itself(self) -> list[str]:
        itself = Run.objects.using(conf.DATABASE).filter(pk=self.parent, state=_FAILED)
        return list(itself.values_list("pk", flat=True))


def _all(run_id: str) -> QuerySet[Child]:
    return Child.objects.using(conf.DATABASE).filter(parent_id=run_id)


def _children(run_id: str, within: RunQuerySet | None) -> QuerySet[Any]:
    """Return the children, each with its state.

    It is looked up for each: as a join, the table of all runs might be read.
    """
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    state = runs.order_by().filter(pk=OuterRef("run_id")).values("state")[:1]
    found = _all(run_id).annotate(in_state=Subquery(state))
    return found if within is None else found.filter(in_state__isnull=False)
