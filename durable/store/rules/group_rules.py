"""Rules of a group of children, as functions of its counts. Shared by the stores that count in Python.

The functions of PostgreSQL have the same rules in SQL; `tests/store/test_groups.py` compares both. Must not use a
database or keep anything.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from durable.core.records import ENDED, GroupRecord, OnFailure, RunRecord, RunState, WhenParentEnds

#: The counts of a group, which change under the lock of its tally.
COUNTS: Final = ("created", "waiting", "running", "completed", "failed", "cancelled", "is_stopped")


def room(group: GroupRecord, parent: RunRecord | None) -> int:
    """Return how many of the children that wait for their turn may begin now."""
    if group.is_over:
        return 0
    if (parent is None or parent.state in ENDED) and group.spec.when_parent_ends == WhenParentEnds.CANCEL:
        return 0
    return places(group)


def continued(group: GroupRecord) -> GroupRecord:
    """Return the group after a recovery of its parent.

    A group that stops at a failure is stopped as long as it has a failed child: one that is not recovered yet, or has
    failed again.
    """
    is_stopped = group.spec.on_failure == OnFailure.STOP and group.failed > 0
    return replace(group, is_over=False, is_dropped=False, is_stopped=is_stopped)


def places(group: GroupRecord) -> int:
    """Return how many of those that wait fit beside those that run; none after a failure that stops the group."""
    if group.is_stopped:
        return 0
    if group.spec.at_once is None:
        return group.waiting
    return max(0, min(group.waiting, group.spec.at_once - group.running))


def after_turns(group: GroupRecord, count: int) -> GroupRecord:
    """Return the group after the turns of that many children have come."""
    return replace(group, waiting=group.waiting - count, running=group.running + count)


def after_end(group: GroupRecord, state: str, *, had_turn: bool) -> GroupRecord:
    """Return the group after the end of a child; `had_turn` unless it still waited for its turn."""
    is_stopped = group.is_stopped or (state != RunState.COMPLETED and group.spec.on_failure == OnFailure.STOP)
    return replace(_without(group, had_turn=had_turn), is_stopped=is_stopped, **{state: getattr(group, state) + 1})


def wakes(before: GroupRecord, after: GroupRecord) -> bool:
    """Return True if the parent is to be woken: the group is settled and was not."""
    return after.is_settled and not before.is_settled


def is_counted_out(group: GroupRecord, state: str, *, had_turn: bool) -> GroupRecord:
    """Return the group without a child whose place another one takes."""
    if state in ENDED:
        return replace(group, created=group.created - 1, **{state: getattr(group, state) - 1})
    return replace(_without(group, had_turn=had_turn), created=group.created - 1)


def counted_again(group: GroupRecord, state: str, goes_on: str) -> tuple[GroupRecord, bool]:
    """Return the group after a child that had ended in `state` goes on in another, and whether that waits for its turn.

    A compensation waits for none: the parent may wait for it, in a group that is over and gives no turns.
    """
    group = replace(group, **{state: getattr(group, state) - 1})
    is_full = group.spec.at_once is not None and group.running >= group.spec.at_once
    if is_full and not group.is_over and goes_on != RunState.ROLLING_BACK:
        return replace(group, waiting=group.waiting + 1), True
    return replace(group, running=group.running + 1), False


def begins_at(run: RunRecord, due_at: datetime, now: datetime) -> datetime | None:
    """Return the `wake_at` of a child whose turn has come; a paused one begins when it is resumed."""
    if run.state != RunState.PENDING:
        return run.wake_at
    moment = max(due_at, now)
    return moment if run.wake_at is None else min(run.wake_at, moment)


def _without(group: GroupRecord, *, had_turn: bool) -> GroupRecord:
    if had_turn:
        return replace(group, running=group.running - 1)
    return replace(group, waiting=group.waiting - 1)
