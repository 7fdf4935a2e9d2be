"""What a timeline is made of besides its places: failed attempts, loops, and an axis of time that folds long waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from django.db.models import Count

from durable.conf import conf
from durable.core.records import EntryKind, EntryStatus
from durable.inspection.activities import RunningStep
from durable.inspection.entry_detail import loop_note
from durable.inspection.places import Masked, Place, PlaceNode, Record, masked, stands_for
from durable.models import Attempt, Entry
from durable.store.tables.surveys import long_data

Work = tuple[datetime, datetime]  # a span in which something was executed

_MOST_FOLDED: Final = 8  # gaps; the longest ones
_SHORTEST: Final = timedelta(seconds=2)  # of a gap that is folded
_OF_THE_AXIS: Final = 0.1  # a folded gap's part of it
_OF_ALL_FOLDED: Final = 0.4
_NARROWEST: Final = 0.05  # part of the axis that a stretch between two folded gaps has at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of the axis from `start` to `end`, which are fractions of the whole axis. A gap is a folded one."""

    begins_at: datetime
    ends_at: datetime
    start: float
    end: float
    is_gap: bool = False

    @property
    def length(self) -> timedelta:
        """The time that it stands for."""
        return self.ends_at - self.begins_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The pieces of an axis, from left to right without holes."""

    pieces: Sequence[Piece]

    @property
    def begins_at(self) -> datetime:
        """The time at the left end."""
        return self.pieces[0].begins_at

    @property
    def ends_at(self) -> datetime:
        """The time at the right end."""
        return self.pieces[-1].ends_at

    @property
    def gaps(self) -> Sequence[Piece]:
        """The folded pieces."""
        return [piece for piece in self.pieces if piece.is_gap]

    def position(self, moment: datetime) -> float:
        """Return where the moment is, from 0 to 1."""
        for piece in self.pieces:
            if moment <= piece.ends_at:
                part = (moment - piece.begins_at) / piece.length if piece.length else 0.0
                return piece.start + max(0.0, part) * (piece.end - piece.start)
        return 1.0


def time_axis(begins_at: datetime, ends_at: datetime, work: Iterable[Work], *, is_folded: bool) -> TimeAxis:
    """Return the axis from `begins_at` to `ends_at`, with the stretches without work folded if that is asked for.

    A stretch is folded if it is longer than all work together, and if the folded ones are most of the axis. A moment of
    work is a span of length 0.
    """
    ends_at = max(ends_at, begins_at + timedelta(microseconds=1))
    gaps = _gaps(begins_at, ends_at, work) if is_folded else []
    if not gaps:
        return TimeAxis(pieces=[Piece(begins_at=begins_at, ends_at=ends_at, start=0.0, end=1.0)])
    cuts = [begins_at, *(moment for gap in gaps for moment in gap), ends_at]
    stretches = [(first, last) for first, last in pairwise(cuts) if last > first]
    folded = set(gaps)
    width = min(_OF_THE_AXIS, _OF_ALL_FOLDED / len(gaps))
    shown = sum((last - first).total_seconds() for first, last in stretches if (first, last) not in folded)
    parts = []
    for first, last in stretches:
        part = (last - first).total_seconds() / shown if shown else 0.0
        parts.append(width if (first, last) in folded else max(_NARROWEST, part * (1 - width * len(gaps))))
    whole, at, pieces = sum(parts), 0.0, []
    for (first, last), part in zip(stretches, parts, strict=True):
        is_gap = (first, last) in folded
        pieces.append(Piece(begins_at=first, ends_at=last, start=at, end=at + part / whole, is_gap=is_gap))
        at += part / whole
    return TimeAxis(pieces=pieces)


def _gaps(begins_at: datetime, ends_at: datetime, work: Iterable[Work]) -> list[Work]:
    """Return the stretches to fold, in order."""
    gaps: list[Work] = []
    worked = timedelta()
    reached = begins_at
    for first, last in sorted(work):
        first, last = min(max(first, begins_at), ends_at), min(max(last, begins_at), ends_at)
        if first > reached:
            gaps.append((reached, first))
        worked += max(timedelta(), last - max(first, reached))
        reached = max(reached, last)
    if ends_at > reached:
        gaps.append((reached, ends_at))
    longest = sorted(gaps, key=_length, reverse=True)[:_MOST_FOLDED]
    folded = sorted(gap for gap in longest if _length(gap) >= max(_SHORTEST, worked))
    saved = sum(map(_length, folded), timedelta())
    return folded if saved > (ends_at - begins_at) / 2 else []


def _length(gap: Work) -> timedelta:
    return gap[1] - gap[0]


MOST_ATTEMPTS: Final = 400  # failed ones that are drawn
_BEHIND_ALL: Final = 10**15  # the ordinal of what is not recorded yet
_MOST_LOOPS: Final = 50  # whose iterations are shown


class AttemptSpan(NamedTuple):
    """The span of a failed attempt.

    Its `number` counts from 1, and again from 1 after a recovery of its step.
    """

    begins_at: datetime
    ends_at: datetime
    number: int


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The newest failed attempts of a run by location, in order, and the number of all by location.

    In a long history the numbers are by masked location. `left_out` is the number of those that are not here.
    """

    _attempts: Mapping[str, Sequence[AttemptSpan]]
    _numbers: Mapping[str, int]
    _is_exact: bool
    left_out: int
    _folded: Mapping[str, Sequence[str]]  # the locations by masked location

    def at(self, location: str) -> Sequence[AttemptSpan]:
        """Return the failed attempts at a location."""
        return self._attempts.get(location, ())

    def spans(self, node: PlaceNode) -> Iterator[Work]:
        """Yield when those of a node's own entries began and ended."""
        if node.is_folded and not self._is_exact:
            locations = self._drawn(node)
        else:
            locations = {record.location for record in node.records}
        for location in locations:
            for attempt in self.at(location):
                yield attempt.begins_at, attempt.ends_at

    def of(self, node: PlaceNode) -> int:
        """Return the number of failed attempts of a node's own entries."""
        if self._is_exact:
            return sum(self._numbers.get(location, 0) for location in {each.location for each in node.records})
        if masked(node.location) == node.location:
            return self._numbers.get(node.location, 0)
        if node.is_folded:  # inside a member that is opened
            return sum(len(self.at(location)) for location in self._drawn(node))
        return sum(len(self.at(record.location)) for record in node.records)

    def _drawn(self, node: PlaceNode) -> set[str]:
        """Return the locations of a folded node at which attempts are drawn."""
        return {each for each in self._folded.get(masked(node.location), ()) if stands_for(node.location, each)}


def read_attempts(run_id: str, *, is_exact: bool) -> FailedAttempts:
    """Return a run's failed attempts: one statement, two if there are more than `MOST_ATTEMPTS`."""
    found = Attempt.objects.using(conf.DATABASE).filter(run=run_id).order_by()
    newest = found.order_by("-id").values_list("location", "started_at", "finished_at", "number")
    drawn = list(newest[: MOST_ATTEMPTS + 1])[:MOST_ATTEMPTS]
    attempts: dict[str, list[AttemptSpan]] = {}
    for location, begin, end, number in reversed(drawn):
        attempts.setdefault(location, []).append(AttemptSpan(begin, end, number))
    key = "location" if is_exact else "masked"
    if len(drawn) < MOST_ATTEMPTS:
        numbers = Counter(location if is_exact else masked(location) for location, *_ in drawn)
    else:
        grouped = found.annotate(masked=Masked("location")).values_list(key).annotate(number=Count("id"))
        numbers = Counter(dict(grouped))
    folded: dict[str, list[str]] = {}
    for location in attempts:
        folded.setdefault(masked(location), []).append(location)
    return FailedAttempts(attempts, numbers, is_exact, numbers.total() - len(drawn), folded)


def add_running(places: list[Place], steps: Iterable[RunningStep], *, is_exact: bool) -> None:
    """Add the attempts that run now to the places: a step is recorded only at the end of its first attempt."""
    by_location = {place.location: place for place in places}
    for number, step in enumerate(steps):
        if step.is_rollback:
            continue
        new = Record(
            ordinal=_BEHIND_ALL + number,
            location=step.location,
            kind=EntryKind.STEP.value,
            status=EntryStatus.RUNNING.value,
            attempts=step.attempt,
            created_at=step.began_at,
            last_attempt_at=step.began_at,
            next_attempt_at=None,
            completed_at=None,
            rollback_completed_at=None,
            has_failed_to_undo=False,
        )
        place = by_location.get(step.location) or (None if is_exact else by_location.get(masked(step.location)))
        if place is None:
            places.append(Place(location=new.location, kind=new.kind, ordinal=new.ordinal, records=[new]))
            continue
        known = next((each for each in place.records if each.location == new.location), None)
        if known is None:
            place.count += 1
        else:
            place.records.remove(known)
            new = new._replace(ordinal=known.ordinal, created_at=known.created_at)
        place.records.append(new)


def read_iterations(run_id: str, top: Iterable[PlaceNode]) -> dict[str, str]:
    """Return what loops say of their iterations, by location; one statement if there are loops."""
    loops = [node.first for each in top for node in each.walk() if node.kind == EntryKind.LOOP and not node.is_folded]
    if not loops:
        return {}
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id, location__in=loops[:_MOST_LOOPS])
    rows = found.order_by().values_list("pk", "location", "metadata__status")
    at = {key: (location, status) for key, location, status in rows}
    data = long_data(conf.DATABASE, [(key, 0) for key in at])
    return {at[key][0]: loop_note(at[key][1], each) for key, each in data}
