"""The rank of a run: its place among the due ones. A head start and a share move it.

Owns what a start says about it, and the arithmetic of start tags. Plain data; stores keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

#: How far a run of weight 1 moves the next run of its share.
STEP: Final = timedelta(seconds=1)
#: The longest head start, and the longest that one may be put back.
LONGEST: Final = timedelta(days=1)
#: The tag of a run that is to have one when it is due. PostgreSQL's functions have the same moment.
UNTAGGED: Final = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The rank that a start gives: `priority` as given ("" for none), its `head_start` in seconds, its share."""

    priority: str = ""
    head_start: int = 0
    share: str = ""
    weight: float = 1.0


def inherited(given: Ranking | None, parent: Ranking | None) -> Ranking | None:
    """Return the ranking of a child: what its start says, and for what that does not say what its parent has."""
    if given is None or parent is None:
        return given or parent
    if not given.priority:
        given = replace(given, priority=parent.priority, head_start=parent.head_start)
    if not given.share:
        given = replace(given, share=parent.share, weight=parent.weight)
    return given


@dataclass(frozen=True, slots=True)
class ShareTag:
    """The position of a share: `tag` is that of its next run, in this round.

    The entry of a queue itself has the tag that was served last, None while no run of any share waits.
    """

    tag: datetime | None = None
    round: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A due run of a claim. `tag` is its start tag, None for none."""

    run_id: str
    wake_at: datetime
    head_start: int = 0
    tag: datetime | None = None

    @property
    def rank(self) -> tuple[datetime, str]:
        """The place of the run among the due ones."""
        return (self.wake_at if self.tag is None else self.tag) - timedelta(seconds=self.head_start), self.run_id


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return them in the order in which they are claimed."""
    return sorted(candidates, key=lambda each: each.rank)


def span(number: int, weight: float) -> timedelta:
    """Return how far so many runs of this weight move the next run of their share."""
    return STEP * number / weight


def virtual(queue: ShareTag, now: datetime) -> datetime:
    """Return the moment up to which the queue's shares are served: now, unless the queue is behind."""
    return now if queue.tag is None else min(queue.tag, now)


def tagged(queue: ShareTag, share: ShareTag, now: datetime) -> datetime:
    """Return the start tag of the next run of a share: not before what is served, and behind its own runs that wait."""
    served = virtual(queue, now)
    if share.tag is None or share.round < queue.round:
        return served
    return max(served, share.tag)
