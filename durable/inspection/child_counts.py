"""The children of a run, counted by state and by group; what a page of a parent with thousands of them shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count
from durable.models import Child, ChildGroup

__all__ = ["ChildCounts", "GroupCounts", "child_counts"]

_CAP = 1_000  # children of their own that are counted, and groups that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The children of one `ctx.map`, by what they do: exact, whatever their number.

    `location` is that of the map in its parent, and of `group` in `handle.children(group=...)`. `size` is the number of
    inputs; `created` of them have a run so far. `waiting` wait for their turn, `running` have theirs and have not ended.
    `at_once` is how many run at a time, None for all.
    """

    id: str
    location: str
    size: int
    at_once: int | None
    on_failure: str
    created: int
    waiting: int
    running: int
    completed: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCounts:
    """The children of a run. `alone` counts those that are in no group, by state, up to 1,000 of them altogether."""

    groups: tuple[GroupCounts, ...]
    alone: Mapping[str, Count]

    def __bool__(self) -> bool:
        return bool(self.groups or self.alone)


def child_counts(run_id: str) -> ChildCounts:
    """Return the children of a run by state and by group; two statements, whose cost does not grow with the children.

    The groups are the newest 1,000, in the order of their starts.
    """
    found = ChildGroup.objects.using(conf.DATABASE).filter(parent_id=run_id).select_related("tally")
    groups = [_counts(each) for each in found.order_by("-position")[:_CAP]]
    alone = Child.objects.using(conf.DATABASE).filter(parent_id=run_id, group__isnull=True).order_by("position")
    states: dict[str, int] = {}
    for state in alone.values_list("run__state", flat=True)[: _CAP + 1]:
        states[state] = states.get(state, 0) + 1
    is_capped = sum(states.values()) > _CAP
    counts: dict[str, Count] = {
        state.value: Count(number=states[state.value], is_capped=is_capped)
        for state in RunState
        if state.value in states
    }
    return ChildCounts(groups=tuple(reversed(groups)), alone=counts)


def _counts(group: ChildGroup) -> GroupCounts:
    tally = group.tally
    return GroupCounts(
        id=group.id,
        location=group.location,
        size=group.size,
        at_once=group.at_once,
        on_failure=group.on_failure,
        created=tally.created,
        waiting=tally.waiting,
        running=tally.running,
        completed=tally.completed,
        failed=tally.failed,
        cancelled=tally.cancelled,
    )
