"""The rank of a run: its place among the due runs, by priority, head start, share and weight.

Owns the ranking options of a start, and the arithmetic of start tags. Plain data; stores keep it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from durable.core.duration import Duration, parse_length
from durable.core.ids import MAX_ID
from durable.core.numbers import is_number

#: By how much a run of weight 1 postpones the next run of its share.
STEP: Final = timedelta(seconds=1)
#: The longest head start, and the longest that a run may be put back.
LONGEST: Final = timedelta(days=1)
#: Marks a run that gets its start tag when it is due. PostgreSQL's functions use the same value.
UNTAGGED: Final = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The ranking that a start asks for: `priority` as written ("" for none), its `head_start` in seconds, its
    share.
    """

    priority: str = ""
    head_start: int = 0
    share: str = ""
    weight: float = 1.0


def inherited(given: Ranking | None, parent: Ranking | None) -> Ranking | None:
    """Return the ranking of a child: that of its start, with gaps filled from its parent."""
    if given is None or parent is None:
        return given or parent
    if not given.priority:
        given = replace(given, priority=parent.priority, head_start=parent.head_start)
    if not given.share:
        given = replace(given, share=parent.share, weight=parent.weight)
    return given


@dataclass(frozen=True, slots=True)
class ShareTag:
    """The position of a share: `tag` is that of its next run in this round.

    The entry of the queue itself has the last tag that was served; None while no run of any share waits.
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
        """The sort key of the run among the due runs."""
        return (self.wake_at if self.tag is None else self.tag) - timedelta(seconds=self.head_start), self.run_id


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort candidates in the order in which they are claimed."""
    return sorted(candidates, key=lambda each: each.rank)


def span(number: int, weight: float) -> timedelta:
    """Return by how much `count` runs of this weight postpone the next run of their share."""
    return STEP * number / weight


def virtual(queue: ShareTag, now: datetime) -> datetime:
    """Return the moment up to which the queue's shares are served: now, or earlier if the queue is behind."""
    return now if queue.tag is None else min(queue.tag, now)


def tagged(queue: ShareTag, share: ShareTag, now: datetime) -> datetime:
    """Return the start tag of a share's next run: not before what is served, and after the share's waiting runs."""
    earliest = virtual(queue, now)
    if share.tag is None or share.round < queue.round:
        return earliest
    return max(earliest, share.tag)


def served(before: ShareTag | None, taken: Sequence[Candidate], *, is_one_left: bool) -> ShareTag | None:
    """Return the entry of a queue after a claim has taken these runs; None if it stays as it is.

    It has the last start tag that was taken. If no run of a share is left, a new round begins.
    """
    tags = [each.tag for each in taken if each.tag is not None]
    last = before or ShareTag()
    if not tags and (is_one_left or last.tag is None):
        return None
    if not is_one_left:
        return ShareTag(None, last.round + 1)
    return ShareTag(max(tags if last.tag is None else [*tags, last.tag]), last.round)


def head_start(priority: Duration, names: Mapping[str, Duration]) -> int:
    """Return a priority (a duration or one of `names`) in whole seconds; negative if it puts the run back.

    Raises TypeError for another type, and ValueError for an unknown or invalid name, or more than a day.
    """
    if isinstance(priority, str):
        if priority in names:
            priority = names[_check_name(priority)]
        elif len(priority.strip()) > MAX_ID:
            raise ValueError(f"a priority is written in at most {MAX_ID} characters, not {priority[:64]!r} and more")
    try:
        length = parse_length(priority, "a priority")
    except ValueError:
        if not isinstance(priority, str) or any(each.isdigit() for each in priority):
            raise
        nearest = difflib.get_close_matches(priority, names, n=1)
        hint = f'did you mean "{nearest[0]}"?' if nearest else f"there are {', '.join(names) or 'none'}"
        raise ValueError(
            f'no priority is named {priority!r} in DURABLE["PRIORITIES"], {hint}; or write a length, such as "10 min"'
        ) from None
    if abs(length) > LONGEST:
        raise ValueError(f"a priority is a head start of at most 24 hours, or as much less than none, not {priority!r}")
    return round(length.total_seconds())


def is_priority_name(name: object) -> bool:
    """Return True if a priority may have this name: 1 to 200 printable characters, and not only spaces."""
    return isinstance(name, str) and name.isprintable() and 1 <= len(name.strip()) <= MAX_ID


def _check_name(name: str) -> str:
    if not is_priority_name(name):
        raise ValueError(
            f'a name in DURABLE["PRIORITIES"] is made of 1 to {MAX_ID} printable characters, not {name[:64]!r}'
        )
    return name


def priority_text(priority: Duration) -> str:
    """Return a priority for display: as written, or a number of seconds with its unit."""
    if isinstance(priority, timedelta):
        priority = priority.total_seconds()
    return priority.strip() if isinstance(priority, str) else f"{priority:g} s"


def check_share(share: str) -> str:
    """Return `share` if it is valid: 1 to 200 printable characters; else raise TypeError or ValueError."""
    if not isinstance(share, str):
        raise TypeError(f"a share is text, not {share!r}: write share=str(...)")
    if not (1 <= len(share) <= MAX_ID and share.isprintable()):
        raise ValueError(f"a share is made of 1 to {MAX_ID} printable characters: {share[:64]!r}")
    return share


def check_weight(weight: float) -> float:
    """Return `weight` if it is a number from 0.001 to 1,000; else raise TypeError or ValueError."""
    if not is_number(weight):
        raise TypeError(f"a weight is a number, not {weight!r}")
    if not 0.001 <= weight <= 1000:
        raise ValueError(f"a weight is a number from 0.001 to 1000, 1 by default, not {weight!r}")
    return float(weight)


def ranking_of(
    priority: Duration | None, share: str | None, weight: float | None, names: Mapping[str, Duration]
) -> Ranking | None:
    """Return the ranking that a start asks for, or None. Raises TypeError and ValueError."""
    if share is None and weight is not None:
        raise TypeError("using(weight=...) needs share=... too")
    if priority is None and share is None:
        return None
    return Ranking(
        priority="" if priority is None else priority_text(priority),
        head_start=0 if priority is None else head_start(priority, names),
        share="" if share is None else share,
        weight=1.0 if weight is None else weight,
    )
