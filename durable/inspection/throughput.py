"""The number of runs that ended in the last hour and day, and their durations: of all workflows, or of one.

Read from the rows that the sweep writes behind its watermark (`durable.rollups`), so every run is counted, and the cost
is that of the bars: it does not depend on the number of runs. The figures end at `Throughput.until`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from django.db.models import Q, Sum

from durable.conf import conf
from durable.core.renames import names_of_workflow
from durable.inspection.builds import builds
from durable.inspection.bulks import bulks_among
from durable.inspection.wording import verb_in_words
from durable.models import OperatorAction, Rollup, RollupProgress
from durable.rollups import HALF_HOUR, MINUTE
from durable.rollups.durations import percentile

_ENDS: Final = ("completed", "failed", "cancelled")  # columns
MOST_MARKS: Final = 20  # of each kind
_ACTIONS: Final = 200  # rows of the audit log among which bulks are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The runs that ended from `begins` on, for the chart's width.

    `median` and `slow` (the 95th percentile) are the seconds from creation to end, within a tenth; None without runs.
    """

    begins: datetime
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    median: float | None = None
    slow: float | None = None

    @property
    def total(self) -> int:
        """The number of all of them."""
        return self.completed + self.failed + self.cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The data of one chart: bars of `width` without a gap.

    `until` is the moment up to which ended runs are counted, None if none are yet. `median` and `slow` are those of all
    bars together.
    """

    width: timedelta
    bars: Sequence[Bar]
    until: datetime | None
    median: float | None
    slow: float | None

    @property
    def completed(self) -> int:
        """The number of completed runs."""
        return sum(bar.completed for bar in self.bars)

    @property
    def failed(self) -> int:
        """The number of failed runs."""
        return sum(bar.failed for bar in self.bars)

    @property
    def cancelled(self) -> int:
        """The number of cancelled runs."""
        return sum(bar.cancelled for bar in self.bars)

    @property
    def total(self) -> int:
        """The number of all runs."""
        return self.completed + self.failed + self.cancelled

    @property
    def begin(self) -> datetime:
        """The beginning of the first bar."""
        return self.bars[0].begins

    @property
    def end(self) -> datetime:
        """The end of the last bar."""
        return self.bars[-1].begins + self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMark:
    """Something that may explain a change: a build that appeared (`kind` "deploy"), or an operator's bulk ("bulk").

    `title` is the build, or what the bulk did, or the verb that an operator applied to it. `bulk_id` leads to the bulk.
    """

    kind: str
    at: datetime
    title: str
    bulk_id: str = ""


def last_hour(now: datetime, workflow: str = "") -> Throughput:
    """Return the last hour in bars of two minutes, of all workflows or of one; two statements."""
    [hour] = _measured([_hour(now)], workflow)
    return hour


def last_day(now: datetime, workflow: str = "") -> Throughput:
    """Return the last day in bars of half an hour, of all workflows or of one; two statements."""
    [day] = _measured([_day(now)], workflow)
    return day


def last_hour_and_day(now: datetime, workflow: str = "") -> tuple[Throughput, Throughput]:
    """Return both; two statements."""
    hour, day = _measured([_hour(now), _day(now)], workflow)
    return hour, day


def ended_in_last_day(now: datetime, workflows: Sequence[str]) -> dict[str, Bar]:
    """Return for each of the workflows how many of its runs ended in the day of `last_day`; one statement."""
    day = _day(now)
    kept = Rollup.objects.using(conf.DATABASE).filter(
        workflow__in=workflows, width=int(day.kept.total_seconds()), begins__gte=day.begin, begins__lt=day.end
    )
    sums = kept.order_by().values_list("workflow").annotate(*(Sum(state) for state in _ENDS))
    found = {workflow: dict(zip(_ENDS, numbers, strict=True)) for workflow, *numbers in sums}
    return {name: Bar(begins=day.begin, **found.get(name, {})) for name in workflows}


def marks_of(throughput: Throughput) -> list[TimeMark]:
    """Return the deploys and the bulks of the chart's time, in their order; at most three statements."""
    found = [
        TimeMark(kind="deploy", at=each.first_seen_at, title=each.name)
        for each in builds(throughput.begin, throughput.end, most=MOST_MARKS)
    ]
    actions = OperatorAction.objects.using(conf.DATABASE).filter(
        bulk_id="", created_at__gte=throughput.begin, created_at__lt=throughput.end
    )
    rows = list(
        actions.order_by("-created_at", "-id").values_list("run_id", "created_at", "action", "detail")[:_ACTIONS]
    )
    bulks = bulks_among({run_id for run_id, *_ in rows if run_id})
    found += [
        TimeMark(kind="bulk", at=at, title=detail.removesuffix(", by this run") or verb_in_words(verb), bulk_id=run_id)
        for run_id, at, verb, detail in rows
        if run_id in bulks
    ][:MOST_MARKS]
    return sorted(found, key=lambda each: each.at)


@dataclass(slots=True)
class _Sum:
    """The numbers of several rows."""

    states: Counter[str] = field(default_factory=Counter)
    durations: Counter[int] = field(default_factory=Counter)

    def add(self, row: Rollup) -> None:
        self.states.update(completed=row.completed, failed=row.failed, cancelled=row.cancelled)
        self.durations.update({int(each): number for each, number in row.durations.items()})

    def bar(self, begins: datetime) -> Bar:
        median, slow = (percentile(self.durations, share) for share in (0.5, 0.95))
        return Bar(begins=begins, **self.states, median=median, slow=slow)


@dataclass(slots=True)
class _Span:
    """The bars of a span of time, to be filled; `kept` is the width of the rows that are read for them."""

    kept: timedelta
    width: timedelta
    begin: datetime
    end: datetime
    bars: list[_Sum]
    every: _Sum = field(default_factory=_Sum)

    def add(self, row: Rollup) -> None:
        self.bars[(row.begins - self.begin) // self.width].add(row)
        self.every.add(row)

    def throughput(self, until: datetime | None) -> Throughput:
        return Throughput(
            width=self.width,
            bars=[each.bar(self.begin + position * self.width) for position, each in enumerate(self.bars)],
            until=until,
            median=percentile(self.every.durations, 0.5),
            slow=percentile(self.every.durations, 0.95),
        )


def _hour(now: datetime) -> _Span:
    return _span(now, MINUTE, timedelta(minutes=2), 30)


def _day(now: datetime) -> _Span:
    return _span(now, HALF_HOUR, HALF_HOUR, 48)


def _span(now: datetime, kept: timedelta, width: timedelta, number: int) -> _Span:
    seconds = width.total_seconds()
    end = datetime.fromtimestamp(-(-now.timestamp() // seconds) * seconds, tz=now.tzinfo)
    bars = [_Sum() for _ in range(number)]
    return _Span(kept=kept, width=width, begin=end - number * width, end=end, bars=bars)


def _measured(spans: Sequence[_Span], workflow: str) -> list[Throughput]:
    by_width = {int(span.kept.total_seconds()): span for span in spans}
    conditions = [Q(width=width, begins__gte=span.begin, begins__lt=span.end) for width, span in by_width.items()]
    names = names_of_workflow(workflow)
    for row in Rollup.objects.using(conf.DATABASE).filter(reduce(or_, conditions), workflow__in=names):
        by_width[row.width].add(row)
    until = RollupProgress.objects.using(conf.DATABASE).values_list("until", flat=True).first()
    return [span.throughput(until) for span in spans]
