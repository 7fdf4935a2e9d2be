"""A run's waterfall: a row for each place of its history, with the times of its attempts, backoffs, sleeps and waits.

Covers the whole history, however long it is: iterations, similar branches and numbered siblings are one row. At most
`MOST_ROWS` rows and `MOST_ATTEMPTS` failed attempts are returned, with failed and running places first. Surfaces decide
how to draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from typing import Final

from django.utils.translation import gettext

from durable.core.location import is_within
from durable.core.records import ENDED, EntryKind, EntryStatus, RunState
from durable.inspection.actions import ShownAction, read_actions
from durable.inspection.activities import activities_of_runs
from durable.inspection.forks import FORKS, fatal_locations, read_fatal, read_outcomes
from durable.inspection.places import GRAVITY, HAS_FAILED, PlaceNode, Record, build_place_tree, read_places
from durable.inspection.shown import summary_of
from durable.inspection.timeline_reads import (
    AttemptSpan,
    FailedAttempts,
    Work,
    add_running,
    open_members,
    read_attempts,
    read_iterations,
)
from durable.models import Run
from durable.models.rows import load_json

MOST_ROWS: Final = 120
MOST_MEMBERS: Final = 25  # of a folded row, on one page

#: The kind of span of an entry, by its kind; others, except steps, are a moment.
_SPANS: Final = {
    EntryKind.SLEEP: "sleep",
    EntryKind.MESSAGE: "wait",
    EntryKind.CHILD: "wait",
    EntryKind.MAP: "wait",
    EntryKind.COMPENSATE: "rollback",
}
#: The kinds with a bar of their own; the bar of others spans their contents.
_TIMED: Final = frozenset(EntryKind) - {EntryKind.LOOP, EntryKind.JOIN, EntryKind.RACE}
#: The statuses of failures that the run's code may have caught.
_MAY_BE_CAUGHT: Final = (EntryStatus.FAILED.value, EntryStatus.EXHAUSTED.value)
_UNSETTLED: Final = (EntryStatus.UNKNOWN.value, EntryStatus.HELD.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of time in a row. `ends_at` is None if it has not ended.

    `kind`: attempt, "given" (an output given by hand, which took no time), failed, backoff, sleep, wait, rollback,
    "rollback failed", "scope" (from the first to the last entry inside), or "folded" (from the first to the last
    member).
    """

    kind: str
    begins_at: datetime
    ends_at: datetime | None


@dataclass(slots=True, kw_only=True)
class Row:
    """A place of the history, or several that are folded into one row.

    - `place` names the row: a location, with "#" for numbers where it is folded. `opens` is the place to open to see
      the members, or the omitted contents of a scope; "" for nothing.
    - `location` is that of its entry, "" if it has none or stands for several.
    - `status`: the entry's; that of a scope is the worst inside. "caught": it has failed, and the code continued.
    - `count`: members of a folded row, else 1. `failed`: entries that have failed and wait for another attempt or for
      nothing. `failed_attempts` counts those from before a recovery too.
    - `is_stuck`: a rollback handler in it has failed, and the run's compensation has stopped.
    - `summary`: the line of text that a step's call has for people, "" for none.
    - `p50` and `p95`: seconds that a completed member took; None of a single one and of none.
    """

    place: str
    title: str
    kind: str
    depth: int
    status: str
    count: int = 1
    location: str = ""
    is_folded: bool = False
    is_opened: bool = False
    opens: str = ""
    begins_at: datetime
    ends_at: datetime | None
    p50: float | None = None
    p95: float | None = None
    failed: int = 0
    failed_attempts: int = 0
    summary: str = ""
    note: str = ""
    is_stuck: bool = False
    spans: Sequence[Span] = ()

    @property
    def needs_attention(self) -> bool:
        """Whether something in the row has failed without being caught."""
        return self.status in HAS_FAILED or self.is_stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The rows of a run in the order in which they began, failed branches first.

    `left_out` and `attempts_left_out` are the numbers of omitted rows and failed attempts. `is_sampled`: durations come
    from a sample of entries; all counts are exact. `opened` is the opened place, and `more` the ordinal after which its
    members continue, if there are more.
    """

    axis: TimeAxis
    rows: Sequence[Row]
    actions: Sequence[ShownAction] = ()
    left_out: int = 0
    attempts_left_out: int = 0
    is_sampled: bool = False
    opened: str = ""
    more: int | None = None

    @property
    def failed(self) -> list[Row]:
        """The innermost rows that need attention."""
        return [
            row
            for number, row in enumerate(self.rows)
            if row.needs_attention and not any(each.needs_attention for each in self._inside(number))
        ]

    def _inside(self, number: int) -> Iterator[Row]:
        depth = self.rows[number].depth
        return takewhile(lambda row: row.depth > depth, self.rows[number + 1 :])


def build_timeline(
    run: Run,
    now: datetime,
    *,
    opened: str = "",
    after: int = -1,
    is_folded: bool = True,
    open_keys: Sequence[int] | None = None,
) -> Timeline:
    """Return the waterfall of a run, with the place `opened` open.

    Of the opened place, it has the members that began after the ordinal `after`. `open_keys` are those of
    `progress_of`, for a caller that has them. A bounded number of statements: six for a short history, ten for a long
    one, and two or three more where a place of a long one is opened.
    """
    read = read_places(run, open_keys)
    places = list(read.places)
    running = activities_of_runs([run], now)[run.id]
    add_running(places, running, is_exact=read.is_exact)
    forks = [place.location for place in places if place.kind in FORKS]
    outcomes = read_outcomes(run.id, None if read.is_exact else forks[:MOST_ROWS]).values() if forks else []
    top = build_place_tree(places, {each.location: each for each in outcomes}, opened)
    fatal = None
    if run.state in (RunState.COMPLETED, RunState.FAILED):
        fatal = fatal_locations(run.origins, outcomes) if read.is_exact else read_fatal(run.id, run.origins)
    attempts = read_attempts(run.id, is_exact=read.is_exact)
    undoing = {step.location: step.began_at for step in running if step.is_rollback}
    rows = _Rows(run=run, now=now, attempts=attempts, fatal=fatal, opened=opened, undoing=undoing)
    more = open_members(run, top, opened, after, most=MOST_MEMBERS, is_exact=read.is_exact) if opened else None
    for node in top:
        rows.add(node, 0)
    shown = _chosen(rows.found, opened)
    notes = read_iterations(run.id, top)
    actions = read_actions(run, now)
    moments = [each.at for each in actions]
    drawn = [row for row, _ in shown]
    for row, node in shown:
        row.spans = list(rows.spans(row, node))
        row.note = row.note or notes.get(row.location, "").partition(";")[0]
    begins_at = min([*moments, *(row.begins_at for row in drawn)], default=run.created_at)
    ends_at = max([*moments, *(row.ends_at or rows.end for row in drawn)], default=rows.end)
    work = [*rows.work(top), *((at, at) for at in moments)]
    return Timeline(
        axis=time_axis(begins_at, ends_at, work, is_folded=is_folded),
        rows=drawn,
        actions=actions,
        left_out=len(rows.found) - len(shown),
        attempts_left_out=attempts.left_out,
        is_sampled=not read.is_exact,
        opened=opened,
        more=more,
    )


_Shown = tuple[Row, PlaceNode]


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Makes rows of the nodes of a tree.

    `fatal` and `opened` are those of `build_timeline`. `undoing`: since when a rollback handler runs, by location.
    """

    run: Run
    now: datetime
    attempts: FailedAttempts
    fatal: Set[str] | None
    opened: str
    undoing: Mapping[str, datetime]
    found: list[_Shown] = field(default_factory=list)

    @property
    def end(self) -> datetime:
        return self.run.finished_at or self.now

    def add(self, node: PlaceNode, depth: int, *, outer: Row | None = None, is_member: bool = False) -> None:
        """Add the row of a node, inside the row `outer`, and the rows of its contents."""
        around, group = node, node
        inside = [] if node.is_partial else node.children
        if node.kind in (EntryKind.LOOP, *FORKS) and not node.is_folded and len(inside) == 1 and inside[0].is_folded:
            group = inside[0]  # the only place inside shares the row of its scope
        elif not node.is_folded and len(inside) == 1 and inside[0].kind == "iteration":
            group = inside[0]
        row = self._row(around, group, depth, outer)
        self.found.append((row, node))
        if group.members:
            row.is_opened = True
            for member in group.members:
                self.add(member, depth + 1, outer=row, is_member=True)
        elif (not is_member or is_within(self.opened, node.location)) and _only_place(group) is None:
            for child in group.children:
                self.add(child, depth + 1, outer=row)

    def _row(self, node: PlaceNode, group: PlaceNode, depth: int, outer: Row | None) -> Row:
        begins_at, ends_at = self._extent(node) or (
            (self.run.created_at, self.end) if outer is None else (outer.begins_at, outer.ends_at)
        )
        records = self._measured(group)
        p50, p95 = _percentiles(records) if group.is_folded or node.is_folded else (None, None)
        is_one = not node.is_folded and bool(node.records)
        is_stuck = any(_is_stuck(record, self.run) for record in node.records)
        return Row(
            place=node.location,
            title=_title(node, group),
            kind=node.kind,
            depth=depth,
            status=self._status(node),
            count=group.count if group.is_folded else node.count,
            location=node.records[0].location if is_one else "",
            is_folded=group.is_folded,
            opens=group.location if group.is_folded else node.location if node.is_scope else "",
            begins_at=begins_at,
            ends_at=ends_at,
            p50=p50,
            p95=p95,
            failed=len({each.location for each in node.all_records() if each.status in HAS_FAILED}),
            failed_attempts=sum(self.attempts.of(each) for each in node.walk()),
            summary=self._summary(node.records[0]) if is_one else "",
            note=node.note or (gettext("compensation failed") if is_stuck else ""),
            is_stuck=is_stuck,
        )

    def _summary(self, record: Record) -> str:
        return "" if record.described is None else summary_of(self.run.workflow, load_json(record.described))

    @staticmethod
    def _measured(group: PlaceNode) -> Sequence[Record]:
        """Return the entries whose durations count for a member: its own, or those of the only place inside."""
        if group.records or len(group.children) != 1:
            return group.records
        return group.children[0].records

    def _status(self, node: PlaceNode) -> str:
        inner = [self._status(child) for child in node.children]
        own = [self._judged(record.status, record.location) for record in node.records]
        if node.end and not node.is_folded:
            return self._judged(node.end, node.first)
        if node.end:
            return max([node.end, *inner], key=GRAVITY.index)
        if own and not node.is_folded and own[0] == EntryStatus.COMPLETED:
            return own[0]
        return max([*own, *inner], key=GRAVITY.index, default=EntryStatus.COMPLETED.value)

    def _judged(self, status: str, location: str) -> str:
        is_caught = status in _MAY_BE_CAUGHT and self.fatal is not None and location not in self.fatal
        return "caught" if is_caught else status

    def _extent(self, node: PlaceNode) -> tuple[datetime, datetime | None] | None:
        """Return the first beginning and the last end of a node; the end is None if something in it is open.

        None for a branch that has recorded nothing.
        """
        spans = [self._times(record) for record in node.all_records()]
        spans += [span for each in node.walk() for span in self.attempts.spans(each)]
        if not spans:
            return None
        ends = [end for _, end in spans]
        return min(begin for begin, _ in spans), None if None in ends else max(end for end in ends if end is not None)

    def _times(self, record: Record) -> tuple[datetime, datetime | None]:
        """Return when an entry began and ended; None while it is open."""
        begin = min(record.created_at, record.last_attempt_at or record.created_at)
        if record.completed_at is not None:
            return begin, record.completed_at
        failed = self.attempts.at(record.location)
        if record.status == EntryStatus.EXHAUSTED:
            return begin, failed[-1].ends_at if failed else record.last_attempt_at or begin
        return begin, self.run.finished_at if self.run.state in ENDED else None

    def spans(self, row: Row, node: PlaceNode) -> Iterator[Span]:
        """Yield the spans of a row, in order of time."""
        if not node.is_folded and not row.is_folded and len(node.records) == 1 and node.kind in _TIMED:
            yield from _entry_spans(node.records[0], self.attempts.at(node.first), self.run)
            if (began_at := self.undoing.get(node.first)) is not None:
                yield Span(kind="rollback", begins_at=began_at, ends_at=None)
            return
        yield Span(kind="folded" if row.is_folded else "scope", begins_at=row.begins_at, ends_at=row.ends_at)
        if row.is_folded:
            for begin, end in sorted(span for each in node.walk() for span in self.attempts.spans(each)):
                yield Span(kind="failed", begins_at=begin, ends_at=end)

    def work(self, top: Iterable[PlaceNode]) -> Iterator[Work]:
        """Yield the spans in which steps were executed."""
        for node in top:
            for each in node.walk():
                yield from self.attempts.spans(each)
                if each.is_folded and each.count > len(each.records) > 0:  # the others were at work in between
                    begin, end = self._extent(each) or (self.run.created_at, self.end)
                    yield begin, end or self.end
                for record in each.records:
                    if record.kind == EntryKind.STEP and record.status in (EntryStatus.COMPLETED, EntryStatus.RUNNING):
                        yield _began(record), record.completed_at or self.end
                    elif record.kind not in (EntryKind.LOOP, *FORKS):
                        yield record.created_at, record.created_at
                        if record.completed_at is not None:
                            yield record.completed_at, record.completed_at


def _only_place(group: PlaceNode) -> PlaceNode | None:
    """Return the only place inside each member of a folded node, or None: it shares the members' row."""
    inside = group.children
    return inside[0] if group.is_folded and len(inside) == 1 and not inside[0].children else None


def _title(node: PlaceNode, group: PlaceNode) -> str:
    only = _only_place(group)
    return node.title if only is None or only.title == node.title else f"{node.title} / {only.title}"


def _percentiles(records: Iterable[Record]) -> tuple[float | None, float | None]:
    """Return the seconds within which half of the completed executions ended, and 95 in 100."""
    took = sorted(
        max(0.0, (each.completed_at - _began(each)).total_seconds())
        for each in records
        if each.completed_at is not None
    )
    return (took[len(took) // 2], took[len(took) * 95 // 100]) if took else (None, None)


def _chosen(rows: Sequence[_Shown], opened: str) -> list[_Shown]:
    """Return the rows to draw, at most `MOST_ROWS`.

    Failed and running ones come first, then opened ones, then the outer rows.
    """
    if len(rows) <= MOST_ROWS:
        return list(rows)
    parents: list[int] = []
    around: list[int] = []  # the rows around the present one
    for number, (row, _) in enumerate(rows):
        del around[row.depth :]
        parents.append(around[-1] if around else -1)
        around.append(number)
    urgent = sorted(range(len(rows)), key=lambda number: _urgency(rows[number][0], opened))
    chosen: set[int] = set()
    for number in urgent:
        line = [number]
        while parents[line[-1]] >= 0:
            line.append(parents[line[-1]])
        if len(chosen | set(line)) <= MOST_ROWS:
            chosen |= set(line)
    return [shown for number, shown in enumerate(rows) if number in chosen]


def _urgency(row: Row, opened: str) -> tuple[bool, bool, bool, int]:
    is_urgent = row.needs_attention or row.status == "caught" or row.ends_at is None
    return not row.needs_attention, not is_urgent, not (opened and is_within(row.place, opened)), row.depth


def _entry_spans(record: Record, failed: Sequence[AttemptSpan], run: Run) -> Iterator[Span]:
    if record.kind == EntryKind.STEP:
        yield from _attempt_spans(record, failed)
    else:
        kind = _SPANS.get(EntryKind(record.kind), "moment")
        yield Span(kind=kind, begins_at=record.created_at, ends_at=record.completed_at)
    if (undone := record.rollback_completed_at) is not None:
        yield Span(kind="rollback", begins_at=undone, ends_at=undone)
    elif _is_stuck(record, run) and run.finished_at is not None:
        yield Span(kind="rollback failed", begins_at=run.finished_at, ends_at=run.finished_at)


def _is_stuck(record: Record, run: Run) -> bool:
    return record.has_failed_to_undo and record.rollback_completed_at is None and run.state == RunState.FAILED


def _began(record: Record) -> datetime:
    """Return when the attempt that completed the entry began; for an output given by hand, when it was given."""
    if record.last_attempt_at is None and record.completed_at is not None and record.kind == EntryKind.STEP:
        return record.completed_at
    return record.last_attempt_at or record.created_at


def _attempt_spans(record: Record, failed: Sequence[AttemptSpan]) -> Iterator[Span]:
    last: AttemptSpan | None = None
    if record.status == EntryStatus.PENDING and not failed:  # it waits for a slot of a limit, or for its turn of a rate
        yield Span(kind="wait", begins_at=record.created_at, ends_at=None)
    for attempt in failed:
        yield from _backoff(last, attempt.begins_at, attempt.number)
        yield Span(kind="failed", begins_at=attempt.begins_at, ends_at=attempt.ends_at)
        last = attempt
    if record.status == EntryStatus.COMPLETED and record.last_attempt_at is None and record.completed_at is not None:
        if last is not None:  # of a step that was held
            yield Span(kind="wait", begins_at=last.ends_at, ends_at=record.completed_at)
        yield Span(kind="given", begins_at=record.completed_at, ends_at=record.completed_at)
    elif record.status == EntryStatus.COMPLETED and last is not None and record.last_attempt_at == last.begins_at:
        yield Span(
            kind="wait", begins_at=last.ends_at, ends_at=record.completed_at
        )  # verify has found what it has done
    elif record.status in (EntryStatus.COMPLETED, EntryStatus.RUNNING):
        began = _began(record)
        yield from _backoff(last, began, record.attempts)
        yield Span(kind="attempt", begins_at=began, ends_at=record.completed_at)
    elif record.status == EntryStatus.FAILED and last is not None:
        yield Span(kind="backoff", begins_at=last.ends_at, ends_at=record.next_attempt_at)
    elif record.status in _UNSETTLED and last is not None:  # it waits for an answer: of verify, or of a person
        yield Span(kind="wait", begins_at=last.ends_at, ends_at=None)


def _backoff(last: AttemptSpan | None, until: datetime, number: int) -> Iterator[Span]:
    """Yield the backoff between a failed attempt and the one with this number, if there was one.

    A recovery restarts the numbers. The failure before it was final, and the run then waited for a person.
    """
    if last is not None and until > last.ends_at and number > last.number:
        yield Span(kind="backoff", begins_at=last.ends_at, ends_at=until)


# -- the axis of time, which folds long waits


_MOST_FOLDED: Final = 8  # the most folded gaps; the longest ones count
_SHORTEST: Final = timedelta(seconds=2)  # the shortest gap to fold
_OF_THE_AXIS: Final = 0.1  # a folded gap's part of the axis
_OF_ALL_FOLDED: Final = 0.4
_NARROWEST: Final = 0.05  # part of the axis that a stretch between two folded gaps has at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of the axis from `start` to `end`, as fractions of the whole axis. A gap is a folded stretch."""

    begins_at: datetime
    ends_at: datetime
    start: float
    end: float
    is_gap: bool = False

    @property
    def length(self) -> timedelta:
        return self.ends_at - self.begins_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The pieces of an axis, from left to right without holes."""

    pieces: Sequence[Piece]

    @property
    def begins_at(self) -> datetime:
        return self.pieces[0].begins_at

    @property
    def ends_at(self) -> datetime:
        return self.pieces[-1].ends_at

    @property
    def gaps(self) -> Sequence[Piece]:
        return [piece for piece in self.pieces if piece.is_gap]

    def position(self, moment: datetime) -> float:
        for piece in self.pieces:
            if moment <= piece.ends_at:
                part = (moment - piece.begins_at) / piece.length if piece.length else 0.0
                return piece.start + max(0.0, part) * (piece.end - piece.start)
        return 1.0


def time_axis(begins_at: datetime, ends_at: datetime, work: Iterable[Work], *, is_folded: bool) -> TimeAxis:
    """Return the axis from `begins_at` to `ends_at`; on request, stretches without work are folded.

    A stretch is folded if it is longer than all work together, and if the folded stretches are most of the axis. A
    moment of work is a span of length 0.
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
