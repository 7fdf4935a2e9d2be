"""A run's waterfall as numbers and texts for SVG: positions in percent of the axis, labels, and descriptions of rows.

Templates draw; this module measures and writes the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

from django.utils import timezone
from django.utils.translation import gettext, ngettext

from durable.admin.pages import AdminPages
from durable.inspection.humanize import day_and_clock, milliseconds, printable, signed_span, span, thousands
from durable.inspection.timeline import Piece, Row, Span, TimeAxis, Timeline
from durable.models import Run

_NARROWEST: Final = 0.4  # percent of the axis
_APART: Final = 8.0  # percent between the middles of two labels of `_SHORT` characters
_SHORT: Final = 8
_APART_IN_HALF: Final = 20.0  # the same in a window of half the width, and for each character of long labels there
_CHARACTER_IN_HALF: Final = 1.7
_APART_ON_A_TELEPHONE: Final = 24.0
_CHARACTER_ON_A_TELEPHONE: Final = 2.0
_TOLD_BY_MINUTES: Final = timedelta(minutes=10)  # the shortest stretch of an axis whose times have no seconds
_STEPS: Final = tuple(
    timedelta(seconds=each)
    for each in (
        *(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30),
        *(60, 300, 600, 1800, 3600, 10_800, 43_200, 86_400, 604_800, 2_592_000),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A part of a row: left edge and width in percent."""

    kind: str
    x: str
    width: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRow:
    """A row. `link` leads to the step's page or opens a folded row; `open_link` opens or closes."""

    row: Row
    indent: int
    link: str
    open_link: str
    took: str
    starts: str
    in_order: Sequence[Bar]  # of time

    @property
    def bars(self) -> list[Bar]:
        """The bars in drawing order: work last, over the long spans around it."""
        return sorted(self.in_order, key=lambda bar: bar.kind in _WORK)

    @property
    def spoken(self) -> list[Bar]:
        """The bars that a screen reader reads: one for a folded row, whose failed attempts are counted."""
        return list(self.in_order[:1] if self.row.is_folded else self.in_order)

    @property
    def anchor(self) -> str:
        """The name of the row in an address."""
        return f"row-{sha256(self.row.place.encode(errors='surrogatepass')).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A time at the axis, or the length of a folded gap. `room` is the width of window that it needs: small, half or
    wide.
    """

    x: str
    text: str
    anchor: str
    room: str
    is_gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTimeline:
    """A waterfall with its labels and links."""

    timeline: Timeline
    rows: Sequence[DrawnRow]
    failed: Sequence[DrawnRow]
    labels: Sequence[Label]
    gaps: Sequence[Bar]
    actions: Sequence[dict[str, Any]]  # `action`, its `number`, and where it is: `x`
    is_real: bool
    folded_link: str
    real_link: str
    close_link: str
    more_link: str
    kinds: Sequence[str]


def drawn(admin: AdminPages, run: Run, timeline: Timeline, now: datetime, *, is_real: bool) -> DrawnTimeline:
    """Return the template's data for a timeline."""
    links = _Links(admin.url("step", run.id), timeline.opened, is_real=is_real)
    rows = [_row(row, timeline.axis, run, now, links) for row in timeline.rows]
    failed = {id(row) for row in timeline.failed}
    labels = list(labels_of(timeline.axis))
    axis = timeline.axis
    return DrawnTimeline(
        timeline=timeline,
        rows=rows,
        failed=[each for each in rows if id(each.row) in failed],
        labels=labels,
        gaps=[_bar("gap", gap.start * 100, gap.end * 100, span(gap.length.total_seconds())) for gap in axis.gaps],
        actions=[
            {"action": action, "number": number, "x": f"{axis.position(action.at) * 100:.2f}%"}
            for number, action in enumerate(timeline.actions, 1)
        ],
        is_real=is_real,
        folded_link=links.view(timeline.opened, is_real=False),
        real_link=links.view(timeline.opened, is_real=True),
        close_link=links.view(""),
        more_link=links.view(timeline.opened, after=timeline.more) if timeline.more is not None else "",
        kinds=sorted({bar.kind for row in rows for bar in row.bars}, key=_KINDS.index),
    )


_WORK: Final = frozenset({"attempt", "given", "running", "failed", "rollback", "rollback-failed"})
_KINDS: Final = (
    *("attempt", "given", "running", "failed", "backoff", "sleep", "wait", "folded", "scope", "bad"),
    *("rollback", "rollback-failed", "moment"),
)


class _Links:
    """Addresses of steps, and of this view with a row opened."""

    def __init__(self, step_url: str, opened: str, *, is_real: bool) -> None:
        self._step_url = step_url
        self.opened = opened
        self._is_real = is_real

    def step(self, location: str) -> str:
        return f"{self._step_url}?{urlencode({'at': printable(location)})}"

    def view(self, opened: str, *, is_real: bool | None = None, after: int | None = None) -> str:
        given = {"open": printable(opened)} if opened else {}
        if self._is_real if is_real is None else is_real:
            given["time"] = "real"
        if after is not None:
            given["after"] = str(after)
        return f"?{urlencode(given)}"


def _row(row: Row, axis: TimeAxis, run: Run, now: datetime, links: _Links) -> DrawnRow:
    is_closing = row.is_opened and row.opens == links.opened
    open_link = links.view("" if is_closing else row.opens) if row.opens else ""
    end = run.finished_at or now
    return DrawnRow(
        row=row,
        indent=min(row.depth, 8),
        link=links.step(row.location) if row.location else open_link,
        open_link=open_link if row.is_folded or not row.location else "",
        took=_took(row, end),
        starts=signed_span(row.begins_at - run.created_at, _length),
        in_order=list(_without_covered(_drawn_span(each, row, axis, end) for each in row.spans)),
    )


def _without_covered(bars: Iterable[Bar]) -> Iterator[Bar]:
    """Yield the bars, omitting those drawn at the same position as the one before: a row may have hundreds."""
    last: Bar | None = None
    for bar in bars:
        if last is None or (bar.kind, bar.x, bar.width) != (last.kind, last.x, last.width):
            yield bar
            last = bar


def _took(row: Row, end: datetime) -> str:
    """Say how long the row took, in the words of its kind."""
    took = _length(((row.ends_at or end) - row.begins_at).total_seconds())
    if row.is_folded:
        return _with_failed(took if row.p50 is None else f"p50 {_length(row.p50)}", row)
    is_given = any(each.kind == "given" for each in row.spans)  # then no attempt has completed it
    if is_given:
        took = gettext("given by hand")
    if row.kind == "step" and row.failed_attempts:
        number = row.failed_attempts + any(each.kind == "attempt" for each in row.spans)
        attempts = ngettext("%(number)s attempt", "%(number)s attempts", number) % {"number": thousands(number)}
        return f"{attempts}, {took}"
    if row.ends_at is None:
        is_waiting = row.kind in ("sleep", "message") or (
            row.kind == "step" and row.status in ("pending", "unknown", "held")
        )
        text = gettext("waiting %(span)s") if is_waiting else gettext("running %(span)s")
        return text % {"span": took}
    return _with_failed(took, row) if row.opens else took


def _with_failed(text: str, row: Row) -> str:
    if not row.failed:
        return text
    failed = ngettext("%(number)s failed", "%(number)s failed", row.failed)
    return f"{text}, {failed % {'number': thousands(row.failed)}}"


def _length(seconds: float) -> str:
    """Return a length of time; below a second in milliseconds, because steps are compared by them."""
    return milliseconds(seconds) if 0.0005 <= seconds < 1 else span(seconds)


def _drawn_span(each: Span, row: Row, axis: TimeAxis, end: datetime) -> Bar:
    kind = each.kind.replace(" ", "-")
    if kind in ("scope", "folded") and row.needs_attention:
        kind = "bad"
    elif kind == "attempt" and each.ends_at is None:
        kind = "running"
    took = _length(((each.ends_at or end) - each.begins_at).total_seconds())
    return _bar(kind, axis.position(each.begins_at) * 100, axis.position(each.ends_at or end) * 100, took)


def _bar(kind: str, start: float, end: float, text: str) -> Bar:
    width = end - start
    if width <= _NARROWEST:
        start, width = round(start / _NARROWEST) * _NARROWEST, _NARROWEST
    return Bar(kind=kind, x=f"{min(start, 100 - width):.2f}%", width=f"{width:.2f}%", text=text)


def labels_of(axis: TimeAxis) -> Iterator[Label]:
    """Yield the labels of an axis that do not overlap: times, and in a line below the gaps."""
    first, last = axis.pieces[0], axis.pieces[-1]
    times = [(0.0, _clock(axis.begins_at, axis, first)), (100.0, _clock(axis.ends_at, axis, last))]
    for piece in axis.pieces:
        if not piece.is_gap:
            times += [(axis.position(at) * 100, _clock(at, axis, piece)) for at in _ticks(piece)]
    gaps = [((gap.start + gap.end) * 50, f"⋯ {span(gap.length.total_seconds(), 1)} ⋯") for gap in axis.gaps]
    yield from _apart(times, is_gap=False)
    yield from _apart(gaps, is_gap=True)


def _apart(candidates: Sequence[tuple[float, str]], *, is_gap: bool) -> Iterator[Label]:
    shown: list[tuple[float, str]] = []
    half: list[float] = []
    small: list[float] = []
    longest = max((len(text) for _, text in candidates), default=0)
    apart = _APART * max(1, longest / _SHORT)
    apart_in_half = max(apart, _APART_IN_HALF, _CHARACTER_IN_HALF * longest)
    apart_on_a_telephone = max(apart, _APART_ON_A_TELEPHONE, _CHARACTER_ON_A_TELEPHONE * longest)
    for x, text in candidates:
        is_told = not is_gap and any(text == other for _, other in shown)
        if not is_told and _is_free(x, [other for other, _ in shown], apart):
            shown.append((x, text))
            if _is_free(x, half, apart_in_half):
                half.append(x)
                if _is_free(x, small, apart_on_a_telephone):
                    small.append(x)
    for x, text in sorted(shown):
        anchor = "start" if x < 5 else "end" if x > 95 else "middle"
        room = "small" if x in small else "half" if x in half else "wide"
        yield Label(x=f"{x:.2f}%", text=text, anchor=anchor, room=room, is_gap=is_gap)


def _is_free(x: float, taken: Sequence[float], apart: float) -> bool:
    return all(abs(_middle(x, apart) - _middle(other, apart)) >= apart for other in taken)


def _middle(x: float, apart: float) -> float:
    """Return the middle of a label; labels at the ends of the axis stand inside it."""
    return min(max(x, apart / 2), 100 - apart / 2)


def _ticks(piece: Piece) -> Iterator[datetime]:
    """Yield round times of a piece, more of them the wider it is."""
    wanted = max(1, int((piece.end - piece.start) * 7))
    step = next((each for each in _STEPS if piece.length / each <= wanted), piece.length)
    midnight = timezone.localtime(piece.begins_at).replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + -(-(piece.begins_at - midnight) // step) * step
    for _ in range(10):
        if at > piece.ends_at:
            return
        yield at
        at += step


def _clock(moment: datetime, axis: TimeAxis, piece: Piece) -> str:
    """Return a time as precisely as its piece needs, with the day if the axis has several."""
    local = timezone.localtime(moment)
    is_long = axis.ends_at - axis.begins_at > timedelta(days=1)
    text = day_and_clock(local) if is_long else f"{local:%H:%M}"
    if piece.length < timedelta(seconds=5) and local.microsecond:
        return f"{text}:{local:%S}.{local.microsecond // 1000:03}"
    return text if is_long and piece.length >= _TOLD_BY_MINUTES else f"{text}:{local:%S}"
