"""New runs: the row of a run that is to be created, and the records that are stored with it.

Owns what all starts have in common: those from outside, of children, of the children of maps, and of runs that replace
another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core.duration import later
from durable.core.limits.ranks import Ranking
from durable.core.records import ChildStart, RunRecord
from durable.core.time_limits import RunLimits
from durable.core.transitions import started

#: The fence of a new run whose first pass has something to load.
LOADED = 1

MAX_SUBJECTS: Final = 100  # of one run
MAX_KEY: Final = 200  # characters

#: How the detail of a start ends that a debounce has merged into a run that had not begun, and that gave it its input.
NEWER_INPUT: Final = "put off, with this newer input"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model's instance that a run is about.

    `model` is the label of its concrete model ("shop.order"), `key` its primary key as text. `cancels`: the run is
    cancelled when the instance is deleted.
    """

    model: str
    key: str
    cancels: bool = False

    def __str__(self) -> str:
        return f"{self.model}:{self.key}"


@dataclass(slots=True, kw_only=True)
class NewRun(RunRecord):
    """A run to create: its row, and the records stored with it.

    `key` is only set for a child; other starts pass it separately. `tags` have their values as they are stored. A child
    whose `ranking` lacks a priority or a share has that of its parent. `subjects` are what the run is about.
    """

    limits: RunLimits | None = None
    key: str | None = None
    ranking: Ranking | None = None
    tags: Mapping[str, str] | None = None
    subjects: Sequence[Subject] = ()

    def __post_init__(self) -> None:
        if self.limits is not None:  # its first pass has to load them
            self.fence = max(self.fence, LOADED)

    def in_doubt(self, since: datetime) -> NewRun:
        """Return the run as one that may have done more than is recorded."""
        return replace(self, limits=replace(self.limits or RunLimits(), in_doubt=since))


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is started, from outside or as a child: its times, its rank, its tags, and what it is about.

    `delay` and `work_limit` are in seconds; `deadline` is a length or a moment. `tags` have their values as they are
    stored.
    """

    delay: float = 0.0
    deadline: timedelta | datetime | None = None
    work_limit: float | None = None
    ranking: Ranking | None = None
    tags: Mapping[str, str] | None = None
    subjects: Sequence[Subject] = ()

    def new_run(self, now: datetime, **columns: Any) -> NewRun:
        """Return a run that is started now, with these columns. Raises ValueError for a moment past the year 9999."""
        due_at = later(now, timedelta(seconds=self.delay), "a delay")
        limits = RunLimits.of(now, self.deadline, self.work_limit)
        return NewRun(
            limits=limits,
            ranking=self.ranking,
            tags=self.tags,
            subjects=self.subjects,
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
