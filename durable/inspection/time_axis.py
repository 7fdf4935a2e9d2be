"""An axis of time that folds long stretches without work, so that seconds of work beside days of waiting show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

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
