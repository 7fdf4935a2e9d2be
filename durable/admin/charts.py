"""Charts as numbers for SVG: scopes and counts, how many runs ended, stacked, and how long they took, on a log scale.

Templates draw (`durable/admin/_charts.html`); this module only measures. A drawing is stretched, so texts stand beside
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from durable.admin.text import as_key
from durable.inspection.humanize import day_and_clock, span, thousands
from durable.inspection.tree import TreeNode
from durable.inspection.wording import display_location
from durable.inspection.workflows import Annotation, Bar, Throughput, annotations_of, last_hour_and_day

_DEEPEST = 12  # nesting levels of scopes that are drawn
_SPARK_HEIGHT = 24
_SPARK_WIDTH = 1.6  # of a column; the next one begins 2 units further


def shallow(nodes: Sequence[TreeNode], deepest: int = _DEEPEST) -> list[TreeNode]:
    """Return the nodes, with those below a depth side by side under their paths: code may nest deeper than a page can
    show.
    """
    if deepest:
        return [replace(node, children=shallow(node.children, deepest - 1)) for node in nodes]
    return [
        replace(inner, title=display_location(inner.location), children=[]) for node in nodes for inner in node.walk()
    ]


def spark(counts: Sequence[int]) -> str:
    """Return the path of a chart that has a column for each count above 0; "" for none.

    A column is `_SPARK_WIDTH` wide and up to `_SPARK_HEIGHT` high. All are one path, and not an element each, because a
    page has dozens of these charts.
    """
    most = max(counts, default=0)
    columns = []
    for number, count in enumerate(counts):
        if count:
            height = max(2.0, count / most * _SPARK_HEIGHT)
            columns.append(
                f"M{2 * number} {_SPARK_HEIGHT - height:.1f}h{_SPARK_WIDTH}V{_SPARK_HEIGHT}h-{_SPARK_WIDTH}z"
            )
    return "".join(columns)


HEIGHT: Final = 100  # of a viewBox
STEP: Final = 10  # its width for each bar
_LONG: Final = timedelta(minutes=20)  # of delay that is reported: counting is always a minute or two behind
_HALF_A_DAY: Final = timedelta(hours=12)
_SHOWN_ANNOTATIONS: Final = 4  # that the legend names
#: Moments on an axis of durations, in seconds.
_NICE: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarShapes:
    """A bar of the charts, and the address of the list of its runs, "" without any.

    `ended` and `took` describe the two charts' bars in words, and `cells` are the figures in the table; all are empty
    without runs.
    """

    bar: Bar
    when: str
    ended: str
    took: str
    cells: Sequence[str]
    x: str
    left: str
    parts: Sequence[dict[str, str]]  # of each state: `kind`, `y` and `height`
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAnnotation:
    """A deploy or a bulk in a chart."""

    kind: str
    title: str
    when: str
    x: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCharts:
    """The two charts of one span of time.

    `scale` and `durations` are the labels of the axes, from the top to the bottom, and `times` those from left to
    right. `median` and `slow` are the points of lines, one text for each piece without a gap. `uncounted` is where the
    part begins whose runs are not counted yet, "" if all are. `behind` is its length in words, "" if it is short.
    """

    name: str
    title: str
    throughput: Throughput
    bars: Sequence[BarShapes]
    annotations: Sequence[DrawnAnnotation]
    scale: Sequence[str]
    durations: Sequence[str]
    times: Sequence[str]
    median: Sequence[str]
    slow: Sequence[str]
    uncounted: str
    uncounted_width: str
    counted_until: str
    behind: str
    height: int = HEIGHT
    step: int = STEP

    @property
    def width(self) -> int:
        """The width of the viewBox."""
        return STEP * len(self.bars)

    @property
    def named_annotations(self) -> Sequence[DrawnAnnotation]:
        """The newest annotations, for the legend; the table has all of them."""
        return self.annotations[-_SHOWN_ANNOTATIONS:]


def ended_charts(
    now: datetime, workflow: str = "", site: str = "admin", *, everyone: Mapping[str, str] = MappingProxyType({})
) -> list[EndedCharts]:
    """Return the charts of the last hour and of the last day, of all workflows or of one; five statements.

    `site` is the name of the admin site. `everyone` is added to links to the list so that it includes children.
    """
    hour, day = last_hour_and_day(now, workflow)
    annotations = annotations_of(day)  # both spans end at about the same time, so these include those of the hour
    wanted = urlencode({**({"workflow": workflow} if workflow else {}), **everyone})
    runs_url = f"{reverse('admin:durable_run_changelist', current_app=site)}?{wanted}{'&' if wanted else ''}"
    return [
        _drawn(now, "hour", _("the last hour"), hour, annotations, runs_url, site),
        _drawn(now, "day", _("the last day"), day, annotations, runs_url, site),
    ]


def _drawn(
    now: datetime, name: str, title: str, throughput: Throughput, found: Sequence[Annotation], runs_url: str, site: str
) -> EndedCharts:
    most = _round_up(max((bar.total for bar in throughput.bars), default=0))
    low, high = _range(throughput)
    until = throughput.until
    width = STEP * len(throughput.bars)
    known = 0.0 if until is None else _x(throughput, until)
    return EndedCharts(
        name=name,
        title=title,
        throughput=throughput,
        bars=[_shapes(throughput, position, bar, most, runs_url) for position, bar in enumerate(throughput.bars)],
        annotations=[_annotated(throughput, each, site) for each in found if throughput.begins <= each.at],
        scale=[thousands(most), thousands(most // 2), "0"],
        durations=[span(high, 1), span(math.sqrt(low * high), 1), span(low, 1)],
        times=[_clock(throughput.begins + part * (throughput.end - throughput.begins) / 4) for part in range(4)],
        median=_lines([bar.median for bar in throughput.bars], low, high),
        slow=_lines([bar.slow for bar in throughput.bars], low, high),
        uncounted=f"{known:.1f}" if known < width else "",
        uncounted_width=f"{width - known:.1f}",
        counted_until="" if until is None else _up_to(until, now),
        behind="" if until is None or now - until < _LONG else span((now - until).total_seconds(), 1),
    )


def _shapes(throughput: Throughput, position: int, bar: Bar, most: int, runs_url: str) -> BarShapes:
    parts, top = [], float(HEIGHT)
    for kind, number in (("good", bar.completed), ("idle", bar.cancelled), ("bad", bar.failed)):
        if number:
            height = max(1.0, number / most * HEIGHT)
            top = max(0.0, top - height)
            parts.append({"kind": kind, "y": f"{top:.1f}", "height": f"{height:.1f}"})
    end = bar.begins + throughput.width
    ended_between = {"finished_from": bar.begins.isoformat(), "finished_until": end.isoformat(), "sort": "-finished_at"}
    when = _("%(begin)s to %(end)s") % {"begin": _clock(bar.begins), "end": _clock(end)}
    cells, ended, took = dict[str, str](), "", ""
    if bar.total:
        cells = _cells(bar)
        told = {"when": when, **cells}
        ended = _("%(when)s: %(completed)s completed, %(failed)s failed, %(cancelled)s cancelled") % told
        took = _("%(when)s: half under %(median)s, 95 %% under %(slow)s") % told
    return BarShapes(
        bar=bar,
        when=when,
        ended=ended,
        took=took,
        cells=list(cells.values()),
        x=f"{position * STEP + 0.5}",
        left=f"{position * STEP}",
        parts=parts,
        url=runs_url + urlencode(ended_between) if bar.total else "",
    )


def _cells(bar: Bar) -> dict[str, str]:
    """Return the figures of a bar in words, in the order of the table."""
    numbers = {"completed": bar.completed, "failed": bar.failed, "cancelled": bar.cancelled}
    times = {"median": bar.median, "slow": bar.slow}
    return {
        **{name: thousands(number) for name, number in numbers.items()},
        **{name: "—" if seconds is None else span(seconds) for name, seconds in times.items()},
    }


def _annotated(throughput: Throughput, one: Annotation, site: str) -> DrawnAnnotation:
    title = _("deploy %(build)s") % {"build": one.title} if one.kind == "deploy" else one.title
    address = (
        reverse("admin:durable_run_bulk_result", args=[as_key(one.bulk_id)], current_app=site) if one.bulk_id else ""
    )
    return DrawnAnnotation(
        kind=one.kind, title=title, when=_clock(one.at), x=f"{_x(throughput, one.at):.1f}", url=address
    )


def _x(throughput: Throughput, moment: datetime) -> float:
    """Return the position of a moment in the viewBox, within its edges."""
    share = (moment - throughput.begins) / (throughput.end - throughput.begins)
    return min(1.0, max(0.0, share)) * STEP * len(throughput.bars)


def _round_up(most: int) -> int:
    """Return the end of an axis for up to `most` runs: 2, 4, 10, 20, 40, 100 ... so that its half is whole."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if most <= step * size:
                return step * size
        size *= 10


def _range(throughput: Throughput) -> tuple[float, float]:
    """Return the smallest and the largest value on the axis of durations."""
    medians = [bar.median for bar in throughput.bars if bar.median is not None]
    slow = [bar.slow for bar in throughput.bars if bar.slow is not None]
    if not medians:
        return 0.1, 10.0
    low = max((each for each in _NICE if each <= min(medians)), default=_NICE[0])
    high = min((each for each in _NICE if each >= max(slow)), default=_NICE[-1])
    return low, high if high > low else low * 10


def _lines(values: Sequence[float | None], low: float, high: float) -> list[str]:
    """Return the points of a line for each series of values without a gap; a single value becomes a short line."""
    lines: list[list[str]] = [[]]
    for position, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        share = math.log(max(value, low) / low) / math.log(high / low)
        y = f"{HEIGHT - min(1.0, share) * HEIGHT:.1f}"
        lines[-1].append(f"{position * STEP + STEP / 2:g},{y}")
    found = [line for line in lines if line]
    return [" ".join(line) if len(line) > 1 else _dash(line[0]) for line in found]


def _dash(point: str) -> str:
    x, y = point.split(",")
    return f"{float(x) - 3:g},{y} {float(x) + 3:g},{y}"


def _up_to(until: datetime, now: datetime) -> str:
    """Return the moment up to which runs are counted, with its day if it is long ago."""
    there = timezone.localtime(until)
    return f"{there:%H:%M %Z}" if now - until < _HALF_A_DAY else f"{day_and_clock(there)} {there:%Z}"


def _clock(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%H:%M}"
