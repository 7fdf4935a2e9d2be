"""Children: a run's parents up to the root, its children by state and group, and what a verb on the run does to them.

Every count and page follows the index of a parent's children, or stops at a cap: a run may have any number of them.
`within` limits the runs, for example to those that a user may see: others are neither listed nor counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from django.db.models import ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Coalesce
from django.db.models.lookups import Contains
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.children.entries import START
from durable.core.ids import MAX_ID
from durable.core.numbers import read_whole
from durable.core.records import ENDED, EntryKind, RunState, WhenParentEnds
from durable.core.tally import Tally
from durable.inspection.counting import Count, count_capped, cross_tally
from durable.inspection.humanize import with_reason
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import rows_within, runs_within
from durable.inspection.wording import command
from durable.models import Child, Entry, OperatorAction, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP: Final = 10_000  # children of a run to count, and to examine for one page
PAGE: Final = 50
MOST_PARENTS: Final = 20  # of the chain up to the root
_FAILED: Final = RunState.FAILED.value
_PARENT: Final = "parent"  # the cursor of a bulk before its last page


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The children of a group by state; `name` is the group's location, "" for children without a group."""

    name: str
    states: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedChildren:
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
        return Count(number=sum(group.total for group in self.groups), is_capped=self.is_capped)

    @property
    def failed(self) -> Count:
        return Count(number=self.states.get(_FAILED, 0), is_capped=self.is_capped)

    @property
    def is_settled(self) -> bool:
        """Whether all that were counted have ended."""
        return not any(each not in ENDED for each in self.states)

    def __bool__(self) -> bool:
        return bool(self.groups)


class ChildCursor(NamedTuple):
    """The position of a child in the order of starts.

    A child started anew may have the position of the earlier one.
    """

    position: int
    run_id: str

    def __str__(self) -> str:
        return f"{self.position}:{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> ChildCursor | None:
        """Parse a text, None if it is invalid. A key without an id comes before all children at its position."""
        position, _, run_id = text.partition(":")
        number = read_whole(position)
        return None if number is None else cls(number, run_id.replace("\0", "")[:MAX_ID])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRow:
    """A child, the location at which its parent started it, and its group or ""."""

    run: Run
    location: str
    group: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPage:
    """A page of children in the order of their starts.

    The next page begins after `next_key`, which is None at the end. `is_window`: the page is short because `CAP`
    children were examined for it; more may follow.
    """

    rows: Sequence[ChildRow]
    next_key: ChildCursor | None = None
    is_window: bool = False


def has_children() -> bool:
    """Return whether any run is a child; if none is, a list of roots need not filter. One look at an index."""
    return Child.objects.using(read_alias()).order_by("pk").values_list("pk").first() is not None


def is_child(run_id: str) -> bool:
    """Return whether another run's code has started the run as its child; a run started by a step does not count."""
    return Child.objects.using(read_alias()).filter(pk=run_id).exists()


def list_parents(run: Run, within: RunQuerySet | None = None) -> list[Run]:
    """Return the run's parents, the root first, up to `MOST_PARENTS`; one statement for each, none for a root.

    The chain ends before a run that `within` leaves out.
    """
    runs = runs_within(within)
    chain: list[Run] = []
    above = run.parent_id
    while above is not None and len(chain) < MOST_PARENTS:
        found = runs.filter(pk=above).only("id", "workflow", "state", "summary", "parent").first()
        if found is None:
            break
        chain.insert(0, found)
        above = found.parent_id
    return chain


def count_children(run_id: str, within: RunQuerySet | None = None) -> CountedChildren:
    """Return the run's children by group and state, the first `CAP` of them; one statement."""
    children = _children(run_id, within).annotate(of_group=F("group")).order_by("position")
    numbers: dict[str, dict[str, int]] = {}
    counted = 0
    for group, state, number in cross_tally(children, ["of_group", "in_state"], CAP + 1):
        numbers.setdefault("" if group is None else unpack(group), {})[state] = number
        counted += number
    groups = [GroupCounts(name=name, states=states) for name, states in sorted(numbers.items())]
    return CountedChildren(groups=groups, is_capped=counted > CAP)


def list_children(
    run_id: str,
    *,
    states: Collection[str] = (),
    group: str | None = None,
    after: ChildCursor | None = None,
    limit: int = PAGE,
    within: RunQuerySet | None = None,
) -> ChildPage:
    """Return a page of the run's children after the key `after`, in the order of their starts.

    With `states`, only those in one of them; with a `group`, only those of the group at this location. Three
    statements.
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
    described = Run.objects.using(read_alias()).select_related("shown").defer("input", "output")
    runs = described.in_bulk([each.run_id for each in rows[:limit]])
    shown = [
        ChildRow(run=runs[each.run_id], location=each.location, group=each.group or "", position=each.position)
        for each in rows[:limit]
        if each.run_id in runs
    ]
    if len(rows) > limit:
        return ChildPage(rows=shown, next_key=ChildCursor(rows[limit - 1].position, rows[limit - 1].run_id))
    return ChildPage(rows=shown, next_key=None if end is None else ChildCursor(end + 1, ""), is_window=end is not None)


def _behind(children: QuerySet[Any], key: ChildCursor | None) -> QuerySet[Any]:
    """Return those of one run's children that come after this key."""
    if key is None:
        return children
    # one range of the index, not two
    return children.filter(position__gte=key.position).exclude(position=key.position, pk__lte=key.run_id)


def children_data(counts: CountedChildren) -> dict[str, Any]:
    """Return the counts of children as data for REST and the command line."""
    return {
        "total": counts.total.number,
        "is_capped": counts.is_capped,
        "states": counts.states,
        "groups": [{"group": each.name or None, "states": dict(each.states)} for each in counts.groups],
    }


@dataclass(frozen=True, slots=True)
class FailedChildren:
    """The failed children of a run, and then the run itself if it has failed, as the selection of a bulk.

    With a `group`, only its children. The run comes last: by then its children continue, and it waits for them again.
    """

    parent: str
    group: str | None = None
    total: ClassVar[int | None] = None  # not known without counting
    is_everything: ClassVar[bool] = False  # the parent is a condition

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids of children after `cursor`, and the next cursor; at the end only the run."""
        if cursor == _PARENT:
            return self._itself(), None
        after = None if cursor is None else ChildCursor.parse(cursor)
        page = list_children(self.parent, states=[_FAILED], group=self.group, after=after, limit=limit)
        ids = [each.run.id for each in page.rows]
        return ids, _PARENT if page.next_key is None else str(page.next_key)

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` of the ids, if failed runs are asked for."""
        if _FAILED not in states:
            return []
        page = list_children(self.parent, states=[_FAILED], group=self.group, limit=limit)
        return [*(each.run.id for each in page.rows), *self._itself()][:limit]

    def tally(self, states: Collection[str], most: int) -> Tally:  # noqa: ARG002  # of a run CAP children are counted
        """Count the failed runs by workflow, and the other children by state. Two statements."""
        children = _children(self.parent, None).order_by("position")
        if self.group is not None:
            children = children.filter(group=self.group)
        workflow = Run.objects.using(read_alias()).filter(pk=OuterRef("run_id")).values("workflow")[:1]
        children = children.annotate(of_workflow=Subquery(workflow))
        numbers: Counter[tuple[str, str]] = Counter()
        for state, name, number in cross_tally(children, ["in_state", "of_workflow"], CAP + 1):
            numbers[state, unpack(name) if state in states else ""] += number
        is_partial = numbers.total() > CAP
        itself = Run.objects.using(read_alias()).filter(pk__in=self._itself()).values_list("workflow", flat=True)
        numbers.update((_FAILED, name) for name in itself)
        return Tally(numbers=+numbers, partial=frozenset(RunState) if is_partial else frozenset())

    def failed(self) -> Sequence[tuple[RunQuerySet, bool]]:
        """Return the failed runs, as disjoint querysets."""
        runs = Run.objects.using(read_alias()).filter(state=_FAILED)
        children = _all(self.parent).order_by("position")
        if self.group is not None:
            children = children.filter(group=self.group)
        return [(runs.filter(pk__in=children.values("pk")[:CAP]), False), (runs.filter(pk=self.parent), False)]

    def _itself(self) -> list[str]:
        itself = Run.objects.using(read_alias()).filter(pk=self.parent, state=_FAILED)
        return list(itself.values_list("pk", flat=True))


def _all(run_id: str) -> QuerySet[Child]:
    return Child.objects.using(read_alias()).filter(parent_id=run_id)


def _children(run_id: str, within: RunQuerySet | None) -> QuerySet[Any]:
    """Return the children, each with its state.

    The state is looked up for each: with a join, PostgreSQL might read the table of all runs.
    """
    runs = runs_within(within)
    state = runs.order_by().filter(pk=OuterRef("run_id")).values("state")[:1]
    found = _all(run_id).annotate(in_state=Subquery(state))
    return found if within is None else found.filter(in_state__isnull=False)


_CAP: Final = 1_000
_ENDING: Final = tuple(each.value for each in (*ENDED, RunState.ROLLING_BACK))


def children_left_note(run: Run, within: RunQuerySet | None) -> str:
    """Say how many children of an ended run are still to be cancelled; "" for none.

    "" too for a run that was read without its `cascade`. One query, a count that stops at 1,000, if some are left; else
    none.
    """
    if not Run.cascade.is_cached(run) or getattr(run, "cascade", None) is None:
        return ""
    wanted = Q(when_parent_ends=WhenParentEnds.CANCEL.value) | Q(is_dropped=True)
    children = Child.objects.using(read_alias()).filter(wanted, parent=run.pk).exclude(run__state__in=_ENDING)
    children = rows_within(children, within)
    [left] = count_capped([children.filter(run__pending_request="").order_by("position")], _CAP)
    if not left:
        return ""
    text = ngettext(
        "%(number)s of its children is left to be cancelled: workers do that within seconds",
        "%(number)s of its children are left to be cancelled: workers do that within seconds",
        left.number,
    )
    return text % {"number": left}


_GOING_ON = (RunState.PENDING, RunState.RUNNING, RunState.SLEEPING)


def going_on_note(run: Run, within: RunQuerySet | None) -> str:
    """Say that the open children of a run continue while it is paused; "" without any. One look at an index, or two."""
    if not _has_children(run):
        return ""
    counts = count_children(run.id, within)
    going_on = [each.value for each in _GOING_ON if counts.states.get(each.value)]
    number = sum(counts.states[each] for each in going_on)
    if not number:
        return ""
    text = ngettext(
        "%(number)s open child is not paused with it, and goes on: %(command)s",
        "%(number)s open children are not paused with it, and go on: %(command)s",
        number,
    )
    pausing = f"{command('children', run.id, output='ids')} | {command('pause', '-')}"
    return text % {"number": Count(number=number, is_capped=counts.is_capped), "command": pausing}


def failed_note(run: Run, children: CountedChildren | None = None, within: RunQuerySet | None = None) -> str:
    """Say how many children of a completed run have failed, with the command that recovers them; "" for none.

    Counts the `children` unless the caller has: one look at an index, and one more statement if there are children.
    """
    if run.state != RunState.COMPLETED or (children is None and not _has_children(run)):
        return ""
    counts = count_children(run.id, within) if children is None else children
    if not counts.failed:
        return ""
    text = ngettext(
        "%(number)s of its %(total)s children has failed; its output stays as it is: %(command)s",
        "%(number)s of its %(total)s children have failed; its output stays as it is: %(command)s",
        counts.failed.number,
    )
    recovering = command("recover", children_of=run.id)
    return text % {"number": counts.failed, "total": counts.total, "command": recovering}


def cancel_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Say that the open children of a run are cancelled with it; "" without any."""
    cancelled = Child.objects.using(read_alias()).filter(parent_id=run.id, when_parent_ends=WhenParentEnds.CANCEL.value)
    cancelled = rows_within(cancelled, within)
    if not cancelled.order_by("parent_id", "position").values_list("pk").first():
        return ""
    return _(
        "Its open children are cancelled with it. A cancelled run is not recovered: a restart is a new run, which starts all "
        "of its children anew"
    )


def recover_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Say that cancelled children of a failed run are started anew; "" without any. One look at an index, or two."""
    if run.state != RunState.FAILED or not _has_children(run):
        return ""
    counts = count_children(run.id, within)
    number = counts.states.get(RunState.CANCELLED.value)
    if not number:
        return ""
    text = ngettext(
        "%(number)s of its children was cancelled: where the run waits for it, another is started, which executes all steps "
        "again. What the cancelled one has done stays, unless it was started with rollback=True",
        "%(number)s of its children were cancelled: where the run waits for one, another is started, which executes all steps "
        "again. What the cancelled one has done stays, unless it was started with rollback=True",
        number,
    )
    return text % {"number": Count(number=number, is_capped=counts.is_capped)}


def _has_children(run: Run) -> bool:
    children = Child.objects.using(read_alias()).filter(parent_id=run.id)
    return children.order_by("position").values_list("pk").first() is not None


_RECOVERIES_CAP: Final = 10_000  # children to examine
_MOST_PLACES: Final = 1_000  # operations with recovered children to examine


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRecoveries:
    """The number of a run's children that were recovered after the run read their ends, and the newest recovery.

    `is_after_end`: all of them were recovered after the end of the run. A replay in place that keeps the records of the
    children gives the run a later end.
    """

    count: Count
    newest: OperatorAction
    is_after_end: bool = True

    @property
    def text(self) -> str:
        if self.is_after_end:
            text = ngettext(
                "%(number)s of these was recovered after this run had ended, by %(who)s",
                "%(number)s of these were recovered after this run had ended, last by %(who)s",
                self.count.number,
            )
        else:
            text = ngettext(
                "%(number)s of these was recovered after this run had read how it ended, by %(who)s",
                "%(number)s of these were recovered after this run had read how they ended, last by %(who)s",
                self.count.number,
            )
        text %= {"number": self.count, "who": self.newest.actor_label or self.newest.get_source_display()}
        return with_reason(text, self.newest.reason)

    @property
    def at(self) -> datetime:
        return self.newest.created_at


def recovered_later(run: Run, within: RunQuerySet | None) -> LaterRecoveries | None:
    """Return the later recoveries among the first 10,000 children of an ended run; None for none.

    One statement, three more for a run with children that were ever recovered; none for an open run.
    """
    if run.finished_at is None:
        return None
    # looked up for each child along the index of runs: with a join, the whole log might be read
    actions = OperatorAction.objects.using(read_alias()).filter(
        run_id=OuterRef("run_id"), action="recover", outcome="done"
    )
    newest = actions.order_by("-created_at", "-id").values("id")[:1]
    children = Child.objects.using(read_alias()).filter(parent_id=run.id).order_by("position")
    children = rows_within(children, within)
    rows = cross_tally(children.annotate(of_action=Subquery(newest)), ["of_action", "location"], _RECOVERIES_CAP + 1)
    places = {action: unpack(location) for action, location, _number in rows if action is not None}
    if not places:
        return None
    read = _read_at(run.id, set(places.values()))
    recoveries = OperatorAction.objects.using(read_alias()).filter(pk__in=list(places))
    since = [
        (moment, action)
        for action, moment in recoveries.values_list("pk", "created_at")
        if moment > min(run.finished_at, read.get(places[action], run.finished_at))
    ]
    if not since:
        return None
    is_capped = sum(number for *_, number in rows) > _RECOVERIES_CAP
    last = OperatorAction.objects.using(read_alias()).filter(pk=max(since)[1]).first()
    is_after_end = min(since)[0] > run.finished_at
    if last is None:
        return None
    return LaterRecoveries(count=Count(number=len(since), is_capped=is_capped), newest=last, is_after_end=is_after_end)


def _read_at(run_id: str, places: Collection[str]) -> dict[str, datetime]:
    """Return when the operations at these locations (maps, and calls of children) have read their children's ends."""
    entries = Entry.objects.using(read_alias()).filter(run=run_id, location__in=sorted(places)[:_MOST_PLACES])
    text = ExpressionWrapper(F("data"), TextField())
    starts = Q(Contains(text, f'"action":"{START}"'), kind=EntryKind.CHILD.value)  # their ends are read at other places
    read = entries.exclude(starts).annotate(read_at=Coalesce("metadata__completed_at", "metadata__last_attempt_at"))
    return dict(read.filter(read_at__isnull=False).values_list("location", "read_at"))
