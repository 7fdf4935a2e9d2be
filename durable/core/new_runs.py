"""New runs: the row of a run that is to be created, and the records that are stored with it.

Owns what all starts have in common: those from outside, of children, of the children of maps, and of runs that replace
another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from durable.core.duration import later
from durable.core.limits.ranks import Ranking
from durable.core.records import ChildStart, RunRecord
from durable.core.time_limits import RunLimits
from durable.core.transitions import started

#: The fence of a new run whose first pass has something to load.
_LOADED = 1


@dataclass(slots=True, kw_only=True)
class NewRun(RunRecord):
    """A run to create: its row, and the records stored with it.

    `key` is only set for a child; other starts pass it separately. `tags` have their values as they are stored. A child
    whose `ranking` lacks a priority or a share has that of its parent.
    """

    limits: RunLimits | None = None
    key: str | None = None
    ranking: Ranking | None = None
    tags: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.limits is not None:  # its first pass has to load them
            self.fence = max(self.fence, _LOADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is started, from outside or as a child: when it begins and has to end, its rank, and its tags.

    `delay` and `work_limit` are in seconds; `deadline` is a length or a moment. `tags` have their values as they are
    stored.
    """

    delay: float = 0.0
    deadline: timedelta | datetime | None = None
    work_limit: float | None = None
    ranking: Ranking | None = None
    tags: Mapping[str, str] | None = None

    def new_run(self, now: datetime, **columns: Any) -> NewRun:
        """Return a run that is started now, with these columns. Raises ValueError for a moment past the year 9999."""
        due_at = later(now, timedelta(seconds=self.delay), "a delay")
        limits = RunLimits.of(now, self.deadline, self.work_limit)
        return NewRun(
            limits=limits,
            ranking=self.ranking,
            tags=self.tags,
            **started(due_at if limits is None else limits.wake_at(due_at) or due_at),
            **columns,
        )


def key_of(start: ChildStart) -> tuple[str, str] | None:
    """Return the workflow and the key of a child that is to be started with a key."""
    run = start.run
    return (run.workflow, run.key) if isinstance(run, NewRun) and run.key is not None else None


def without_key(start: ChildStart) -> ChildStart:
    """Return the start without the child's key, because that is already taken."""
    return start._replace(run=replace(start.run, key=None)) if isinstance(start.run, NewRun) else start
