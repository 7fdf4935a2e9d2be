"""How many runs ended in the last hour and day, and how long they took: of all workflows, or of one.

Read from the rows that the sweep writes behind its watermark (`durable.rollups`), so every run is counted, and the cost
is that of the bars: it does not depend on the number of runs. The figures end at `Throughput.until`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from durable.conf import conf
from durable.inspection.builds import builds
from durable.inspection.bulks import bulks_among
from durable.models import OperatorAction, Rollup, RollupProgress
from durable.rollups import HALF_HOUR, MINUTE
from durable.rollups.durations import percentile

__all__ = ["Bar", "Throughput", "TimeMark", "last_day", "last_hour", "marks_of"]

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

    `title` is the build, or what the bulk did. `bulk_id` leads to the bulk.
    """

    kind: str
    at: datetime
    title: str
    bulk_id: str = ""


def last_hour(now: datetime, workflow: str = "") -> Throughput:
    """Return the last hour in bars of two minutes, of all workflows or of one; two statements."""
    return _measured(now, MINUTE, timedelta(minutes=2), 30, workflow)


def last_day(now: datetime, workflow: str = "") -> Throughput:
    """Return the last day in bars of half an hour, of all workflows or of one; two statements."""
    return _measured(now, HALF_HOUR, HALF_HOUR, 48, workflow)


def marks_of(throughput: Throughput) -> list[TimeMark]:
    """Return the deploys and the bulks of the chart's time, in their order; at most three statements."""
    found = [
        TimeMark(kind="deploy", at=each.first_seen_at, title=each.name)
        for each in builds(throughput.begin, throughput.end, most=MOST_MARKS)
    ]
    actions = OperatorAction.objects.using(conf.DATABASE).filter(
        bulk_id="", created_at__gte=throughput.begin, created_at__lt=throughput.end
    )
    rows = list(actions.order_by("-created_at", "-id").values_list("run_id", "created_at", "detail")[:_ACTIONS])
    bulks = bulks_among({run_id for run_id, _, _ in rows if run_id})
    found += [
        TimeMark(kind="bulk", at=created_at, title=detail.removesuffix(", by this run"), bulk_id=run_id)
        for run_id, created_at, detail in rows
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


def _measured(now: datetime, kept: timedelta, width: timedelta, number: int, workflow: str) -> Throughput:
    end = datetime.fromtimestamp(-(-now.timestamp() // width.total_seconds()) * width.total_seconds(), tz=now.tzinfo)
    begin = end - number * width
    sums = [_Sum() for _ in range(number)]
    every = _Sum()
    for row in _rows(begin, end, kept, workflow):
        sums[(row.begins - begin) // width].add(row)
        every.add(row)
    progress = RollupProgress.objects.using(conf.DATABASE).values_list("until", flat=True).first()
    return Throughput(
        width=width,
        bars=[each.bar(begin + position * width) for position, each in enumerate(sums)],
        until=progress,
        median=percentile(every.durations, 0.5),
        slow=percentile(every.durations, 0.95),
    )


def _rows(begin: datetime, end: datetime, kept: timedelta, workflow: str) -> Iterable[Rollup]:
    found = Rollup.objects.using(conf.DATABASE).filter(workflow=workflow, width=int(kept.total_seconds()))
    return found.filter(begins__gte=begin, begins__lt=end)
