"""Children: what the end of a child does to its group and parent, and what the end of a parent does to its
children.

The rules are functions of rows, and of tables behind a protocol (`ChildTable`), for stores that compute in Python. The
functions of PostgreSQL do the same in SQL (`routines/groups.sql` and `routines/ending.sql`). What a commit or a verb of
the parent changes in a group is here, for every store. `tests/store/test_groups.py` and `tests/store/test_ending.py`
compare them.

On PostgreSQL the row of a group is written under the lock of its parent's row. Its tally, which has the counts, has its
own lock. The end of a child takes that after the child's row, and a commit of the parent before the parent's row. So a
transaction that has locked a parent's row never waits for a tally: the end of a parent leaves locked ones to the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from durable.core.children.entries import divided
from durable.core.new_runs import NewRun
from durable.core.records import (
    ENDED,
    Batch,
    ChildStart,
    GroupChange,
    GroupRecord,
    GroupSpec,
    Member,
    OnFailure,
    RunRecord,
    RunState,
    WhenHeld,
    WhenParentEnds,
)
from durable.core.time_limits import RunLimits
from durable.store.rules import TableStore, row_rules

#: The counts of a group, which change under the lock of its tally.
COUNTS: Final = ("created", "waiting", "running", "completed", "failed", "cancelled", "is_stopped")


def room(group: GroupRecord, parent: RunRecord | None) -> int:
    """Return how many of the waiting children may begin now."""
    if group.is_over:
        return 0
    if (parent is None or parent.state in ENDED) and group.spec.when_parent_ends == WhenParentEnds.CANCEL:
        return 0
    return places(group)


def continued(group: GroupRecord) -> GroupRecord:
    """Return the group after a recovery of its parent.

    A group that stops at a failure stays stopped while it has a failed child: one not recovered yet, or failed again.
    """
    is_stopped = group.spec.on_failure == OnFailure.STOP and group.failed > 0
    return replace(group, is_over=False, is_dropped=False, is_stopped=is_stopped)


def places(group: GroupRecord) -> int:
    """Return how many waiting children fit beside the running ones; 0 after a failure that stops the group."""
    if group.is_stopped:
        return 0
    if group.spec.at_once is None:
        return group.waiting
    return max(0, min(group.waiting, group.spec.at_once - taken(group)))


def taken(group: GroupRecord) -> int:
    """Return how many of the places in `at_once` children have. More than there are if held children were settled."""
    return group.running - group.held


def after_turns(group: GroupRecord, count: int) -> GroupRecord:
    """Return the group after `count` children have got their turns."""
    return replace(group, waiting=group.waiting - count, running=group.running + count)


def after_end(group: GroupRecord, state: str, *, had_turn: bool) -> GroupRecord:
    """Return the group after the end of a child; `had_turn` unless it still waited for its turn."""
    is_stopped = group.is_stopped or (state != RunState.COMPLETED and group.spec.on_failure == OnFailure.STOP)
    return replace(_without(group, had_turn=had_turn), is_stopped=is_stopped, **{state: getattr(group, state) + 1})


def wakes(before: GroupRecord, after: GroupRecord) -> bool:
    """Return True if the parent has to be woken, because the group has just become settled."""
    return after.is_settled and not before.is_settled


def counted_out(group: GroupRecord, state: str, *, had_turn: bool) -> GroupRecord:
    """Return the group without a child that another one replaces."""
    if state in ENDED:
        return replace(group, created=group.created - 1, **{state: getattr(group, state) - 1})
    return replace(_without(group, had_turn=had_turn), created=group.created - 1)


def counted_again(group: GroupRecord, state: str, goes_on: str) -> tuple[GroupRecord, bool]:
    """Return the group after a child that had ended in `state` continues, and whether the child waits for its turn.

    A compensation does not wait: the parent may wait for it, in a group that is over and gives no turns.
    """
    group = replace(group, **{state: getattr(group, state) - 1})
    is_full = group.spec.at_once is not None and taken(group) >= group.spec.at_once
    if is_full and not group.is_over and goes_on != RunState.ROLLING_BACK:
        return replace(group, waiting=group.waiting + 1), True
    return replace(group, running=group.running + 1), False


def begins_at(run: RunRecord, due_at: datetime, now: datetime) -> datetime | None:
    """Return the `wake_at` of a child that gets its turn; a paused child begins when it is resumed."""
    if run.state != RunState.PENDING:
        return run.wake_at
    moment = max(due_at, now)
    return moment if run.wake_at is None else min(run.wake_at, moment)


def _without(group: GroupRecord, *, had_turn: bool) -> GroupRecord:
    if had_turn:
        return replace(group, running=group.running - 1)
    return replace(group, waiting=group.waiting - 1)


# -- tables


class Turn(NamedTuple):
    """A child that waits for its turn. `due_at` is the earliest moment at which it may begin."""

    run_id: str
    position: int
    due_at: datetime


class ChildTable(Protocol):
    """The rows of groups, and of children. Each call runs in a transaction beside which no other one writes."""

    def run(self, run_id: str) -> RunRecord | None:
        """Return the row of a run."""

    def get(self, group_id: str) -> GroupRecord | None:
        """Return a group with its counts."""

    def of_parent(self, parent_id: str) -> list[GroupRecord]:
        """Return the groups of a run's children, in order."""

    def members(self, group_id: str, after: int, count: int, *, is_lost: bool) -> list[Member]:
        """Return the children of a group after a position, in order (`Store.members`)."""

    def make(self, spec: GroupSpec) -> None:
        """Insert a group if it does not exist."""

    def counted(self, group_id: str) -> GroupRecord | None:
        """Return a group, and lock its counts until the transaction ends."""

    def write(self, before: GroupRecord, after: GroupRecord) -> None:
        """Write the counts of a group."""

    def decide(self, parent_id: str, group_id: str, *, is_over: bool, is_dropped: bool | None) -> None:
        """Write the parent's decisions about its group; None leaves `is_dropped` as it is."""

    def member_of(self, run_id: str) -> str | None:
        """Return the id of the group that counts a child, or None."""

    def position_of(self, run_id: str) -> int:
        """Return the position of a child."""

    def states_in(self, group_id: str, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those runs that the group counts."""

    def take_out(self, run_ids: Collection[str]) -> None:
        """Remove these children from the counts of their groups."""

    def known(self, run_ids: Sequence[str]) -> set[str]:
        """Return those of the runs that are children."""

    def wait(self, group_id: str, turns: Sequence[Turn]) -> None:
        """Insert waiting turns of a group."""

    def first_turns(self, group_id: str, most: int) -> list[Turn]:
        """Return the first turns of a group."""

    def end_turns(self, run_ids: Collection[str]) -> set[str]:
        """Delete the turns of those runs that have one; return these runs."""

    def waits(self, run_id: str) -> bool:
        """Return True if the run waits for its turn."""

    def begin(self, turns: Sequence[Turn], now: datetime) -> list[RunRecord]:
        """Make these children due (`begins_at`) and return their rows.

        Children whose rows another transaction has locked are left out, and keep their turns.
        """

    def relations(self, run: RunRecord) -> tuple[bool, bool]:
        """Return whether the run is a child, and whether it has children."""

    def update(self, before: RunRecord, after: RunRecord) -> None:
        """Write the changed columns of a run's row."""

    def with_end(self, workflows: Collection[str]) -> set[str]:
        """Return those of the workflows that have an `on_end`."""

    def free(self, run_id: str) -> None:
        """Release the key, slots and reservations of a child that has ended with its parent."""

    def cancellable(self, parents: Mapping[str, RunRecord], most: int) -> list[tuple[RunRecord, str]]:
        """Return children of these parents that are still to be cancelled, each with its parent's id."""

    def note_left(self, parents: Mapping[str, RunRecord], at: datetime) -> None:
        """Record which of these parents have such children left, for the sweep."""

    def next_left(self, after: str) -> str | None:
        """Return the first parent after this one that has children left to cancel."""

    def below(self, parent_id: str, places: tuple[str, ...]) -> list[str]:
        """Return the open children of a run that were started below these places."""

    def left(self, run_ids: Sequence[str], most: int) -> dict[str, int]:
        """Count the children of these parents that are left for the sweep (`Store.children_left`)."""

    def number_below(self, parent_id: str, place: str) -> dict[str, int]:
        """Count the children of a run that were started below this place, by workflow."""

    def drop(self, parent_id: str, run_ids: Sequence[str], *, every: bool) -> bool:
        """Record children of a run as dropped; unless `every`, except those that may continue after its end.

        Return whether there was one.
        """


class ChildStore(TableStore, Protocol):
    """The part of a `Store` for children and their groups."""

    _children: ChildTable

    def group(self, group_id: str) -> GroupRecord | None:
        """Return a group of children with its counts, or None; one query."""
        return self._children.get(group_id)

    def groups_of(self, parent_id: str) -> list[GroupRecord]:
        """Return the groups of a run's children, in the order of their starts; one query."""
        return self._children.of_parent(parent_id)

    def reopen_group(self, group_id: str, parent_id: str) -> None:
        """Let the waiting children of a group have their turns again, because a recovery continues the group."""
        record_decisions(self._children, parent_id, GroupChange(id=group_id, is_continued=True))

    def members(self, group_id: str, after: int, count: int, *, is_lost: bool = False) -> list[Member]:
        """Return the children of a group after this position, in order, at most `count`; one query.

        With `is_lost`, only those that were cancelled, or that an operator has asked to end.
        """
        return self._children.members(group_id, after, count, is_lost=is_lost)

    def open_children_below(self, parent_id: str, places: tuple[str, ...]) -> list[str]:
        """Return the ids of the run's open children that were started below these places ("a/loop/")."""
        return self._children.below(parent_id, places)

    def children_left(self, run_ids: Sequence[str], most: int) -> dict[str, int]:
        """Count the children that are still to be cancelled because one of these runs has ended or dropped them.

        By run, counted up to one more than `most`. One statement, and one more for each run that has some left.
        """
        return self._children.left(run_ids, most)

    def count_children_below(self, parent_id: str, place: str) -> dict[str, int]:
        """Count the run's children that were started below this place ("a/loop/"), by workflow; one query."""
        return self._children.number_below(parent_id, place)

    def _woken_parent(self, batch: Batch) -> frozenset[str]:
        """Return the queue of the parent that the end of this child has made due."""
        parent = self._children.run(batch.parent_id) if batch.parent_id is not None else None
        return frozenset({parent.queue} if parent is not None and row_rules.is_due(parent, batch.now) else ())

    def cascade(self, after: str, now: datetime) -> tuple[str, int] | None:
        """Continue to cancel the children of an ended parent: the first such parent after `after`, by id.

        Return that parent, and how many children were cancelled or asked to end; None if there is none. Children whose
        rows another transaction has locked are left for the next call.
        """
        with self._writing():
            return cascaded(self._children, after, now)


# -- a commit or a verb of the parent

#: Inserts children and their runs; raises ChildIdTaken.
Create = Callable[[Sequence[ChildStart]], Iterable[RunRecord]]


def apply(table: ChildTable, parent_id: str, change: GroupChange, create: Create, now: datetime) -> frozenset[str]:
    """Create the group, or the children, of a change; return the queues to notify. The parent's row is locked.

    What an earlier attempt at the same commit has created stays as it is. Raises ChildIdTaken.
    """
    if change.new is not None:
        table.make(change.new)
    before = table.counted(change.id)
    if before is None or before.spec.parent_id != parent_id:  # a replay's history has the groups of its original
        return frozenset()
    starts, group = _to_start(table, before, change)
    record_decisions(table, parent_id, change)
    if change.is_continued:
        group = continued(group)
    group, queues = _started(table, group, starts, create)
    if not change.is_read:
        group, released = _turned(table, group, now)
        queues |= released
    table.write(before, group)
    return queues


def record_decisions(table: ChildTable, parent_id: str, change: GroupChange) -> None:
    """Record the parent's decisions about its group. Its row is locked."""
    if change.is_continued:
        table.decide(parent_id, change.id, is_over=False, is_dropped=False)
    if change.is_dropped or change.is_read:
        table.decide(parent_id, change.id, is_over=True, is_dropped=True if change.is_dropped else None)


def _to_start(table: ChildTable, group: GroupRecord, change: GroupChange) -> tuple[list[ChildStart], GroupRecord]:
    """Return the starts of a change that are not done yet, and the group without the children that the change takes
    out.
    """
    states, group = _taken_out(table, group, [*change.taken_out, *change.renewed])
    if change.renewed:
        pairs = zip(change.renewed, change.starts, strict=True)
        return [start for run_id, start in pairs if run_id in states], group
    if change.is_replacing:
        made = table.known([start.run.id for start in change.starts])
        return [start for start in change.starts if start.run.id not in made], group
    first = change.created - len(change.starts)
    return [each for number, each in enumerate(change.starts, first) if number >= group.created], group


def _taken_out(table: ChildTable, group: GroupRecord, run_ids: Sequence[str]) -> tuple[dict[str, str], GroupRecord]:
    """Take those of these children that are in the group out of it. Return their states, and the group without them."""
    if not run_ids:
        return {}, group
    states = table.states_in(group.spec.id, run_ids)
    waiting = table.end_turns(states)
    table.take_out(states)
    for run_id, state in states.items():
        group = counted_out(group, state, had_turn=run_id not in waiting)
    return states, group


def _started(
    table: ChildTable, group: GroupRecord, starts: Sequence[ChildStart], create: Create
) -> tuple[GroupRecord, frozenset[str]]:
    if not starts:
        return group, frozenset()
    group = replace(group, created=group.created + len(starts), waiting=group.waiting + len(starts))
    has_queue = group.waiting > len(starts)
    begin = 0 if has_queue else min(len(starts), places(group))
    group = after_turns(group, begin)
    waiting = [ChildStart(_without_turn(start.run), start.child) for start in starts[begin:]]
    created = list(create([*starts[:begin], *waiting]))
    table.wait(
        group.spec.id,
        [Turn(run.id, child.position, run.wake_at or run.created_at) for run, child in starts[begin:]],
    )
    return group, frozenset(run.queue for run in created[:begin])


def _without_turn(run: RunRecord) -> RunRecord:
    """Return a new child that waits for its turn: due only at its deadline."""
    deadline = run.limits.deadline if isinstance(run, NewRun) and run.limits is not None else None
    return replace(run, wake_at=deadline)


def turned(table: ChildTable, group: GroupRecord, now: datetime) -> frozenset[str]:
    """Let children begin that have their turn, and write the counts; return the queues to notify."""
    after, queues = _turned(table, group, now)
    table.write(group, after)
    return queues


def freed(table: ChildTable, run_id: str, now: datetime) -> frozenset[str]:
    """Let another child begin beside this one, of which a step is held now. Return the queues to notify.

    The row of the run is locked. Nothing happens if the run is not a child of a map, or keeps its place.
    """
    group_id = table.member_of(run_id)
    seen = None if group_id is None else table.get(group_id)
    if group_id is None or seen is None or seen.spec.when_held != WhenHeld.FREE:
        return frozenset()
    group = table.counted(group_id)
    return frozenset() if group is None else turned(table, group, now)


def _turned(table: ChildTable, group: GroupRecord, now: datetime) -> tuple[GroupRecord, frozenset[str]]:
    """Let as many waiting children begin as there is room for. Return the group, and the queues to notify."""
    if not group.waiting or not (most := room(group, table.run(group.spec.parent_id))):
        return group, frozenset()
    begun = table.begin(table.first_turns(group.spec.id, most), now)
    table.end_turns([run.id for run in begun])
    return after_turns(group, len(begun)), frozenset(run.queue for run in begun)


def held_back(
    table: ChildTable, before: RunRecord, after: RunRecord, now: datetime, limits: Callable[[str], RunLimits | None]
) -> RunRecord:
    """Return a child's row after a verb, corrected so that the child still waits for its turn: it is due only at its
    deadline. The row is locked.
    """
    group_id = table.member_of(before.id)
    if group_id is None:
        return after
    if before.state in ENDED and after.state not in ENDED:
        counted = table.counted(group_id)
        if counted is None or table.member_of(before.id) != group_id:
            return after
        group, is_to_wait = counted_again(counted, str(before.state), after.state)
        table.write(counted, group)
        if is_to_wait:
            table.wait(group_id, [Turn(before.id, table.position_of(before.id), after.wake_at or now)])
    elif after.state == RunState.ROLLING_BACK and table.waits(before.id):
        counted = table.counted(group_id)
        if counted is not None and table.end_turns([before.id]):
            table.write(counted, after_turns(counted, 1))
    is_to_go_on = after.state not in ENDED and after.pending_request not in row_rules.CANCELLING
    if not is_to_go_on or after.wake_at is None or not table.waits(before.id):
        return after
    own = limits(before.id)
    if own is not None and row_rules.is_reopened(before, after):
        own = own.renewed(after.wake_at)
    return replace(after, wake_at=None if own is None else own.deadline)


def released_at(
    table: ChildTable, run: RunRecord, due_at: datetime, now: datetime, limits: Callable[[str], RunLimits | None]
) -> datetime:
    """Return when a run is due that was held at its start until `due_at`, and is released now.

    A child of a map that was due only at its deadline waited for its turn, which may have come meanwhile.
    """
    if run.parent_id is not None and table.member_of(run.id) is not None:
        own = limits(run.id)
        if own is not None and own.deadline == due_at:
            return now
    return max(now, due_at)


# -- the end of a run


def ended(table: ChildTable, run: RunRecord) -> frozenset[str]:
    """Apply the end of this run, whose row is written, to its parent and children; return the queues to notify."""
    is_child, is_parent = table.relations(run)
    queues = _count_and_wake(table, run) if is_child else frozenset()
    if is_parent:
        queues |= end_children(table, run, row_rules.end_of(run)).queues
    return queues


def _count_and_wake(table: ChildTable, child: RunRecord) -> frozenset[str]:
    """Count the end of a child in its group, if it has one, and wake the parent that waits for the child or the group.

    Return the queues to notify because of children that begin.
    """
    at = row_rules.end_of(child)
    is_member, settled, queues = _count(table, child, at)
    if is_member and settled is None:
        return queues
    if (parent := table.run(child.parent_id or "")) is not None:
        after = row_rules.after_child(parent, child) if settled is None else row_rules.after_group(parent, settled, at)
        table.update(parent, after)
    return queues


def _count(table: ChildTable, run: RunRecord, at: datetime) -> tuple[bool, str | None, frozenset[str]]:
    """Count the end of a child in its group, and let the next one begin.

    Return whether it is in a group, the group's id if its parent has to be woken, and the queues to notify.
    """
    group_id = table.member_of(run.id)
    before = None if group_id is None else table.counted(group_id)
    if group_id is None or before is None:
        return group_id is not None, None, frozenset()
    after = after_end(before, str(run.state), had_turn=not table.end_turns([run.id]))
    after, queues = _turned(table, after, at)
    table.write(before, after)
    return True, group_id if wakes(before, after) else None, queues


class Ended(NamedTuple):
    """How many children were cancelled or asked to end, and the queues of those that a worker has to end."""

    number: int
    queues: frozenset[str]


def end_children(table: ChildTable, run: RunRecord, at: datetime) -> Ended:
    """Cancel the children of an ended run, and their children, as far as they do not continue.

    The number is bounded: the rest is recorded for the sweep.
    """
    number = 0
    queues: set[str] = set()
    parents: Mapping[str, RunRecord] = {run.id: run}
    while parents:
        gone: dict[str, RunRecord] = {}
        found = table.cancellable(parents, row_rules.CASCADED_AT_ONCE - number)
        with_end = table.with_end({child.workflow for child, _ in found}) if found else set()
        for child, parent_id in found:
            number += 1
            after = row_rules.after_parent(child, parents[parent_id], at, hands_over=child.workflow in with_end)
            table.update(child, after)
            if row_rules.is_due(after, at):
                queues.add(after.queue)
            if after.state in ENDED:
                gone[child.id] = after
                table.free(child.id)
                _count(table, after, at)
        table.note_left(parents, at)
        parents = gone
    return Ended(number, frozenset(queues))


def cascaded(table: ChildTable, after: str, at: datetime) -> tuple[str, int] | None:
    """Continue to cancel the children of the first ended parent after this one (`Store.cascade`)."""
    run_id = table.next_left(after)
    run = None if run_id is None else table.run(run_id)
    return None if run is None else (run.id, end_children(table, run, at).number)


def drop(table: ChildTable, run: RunRecord, children: Sequence[str], at: datetime, *, every: bool) -> None:
    """Cancel these children of a continuing run; a place among them stands for the open children started below it.

    Unless `every`, except those that may continue after its end.
    """
    ids, below = divided(children)
    if table.drop(run.id, [*ids, *(table.below(run.id, below) if below else ())], every=every):
        end_children(table, run, at)
