"""The number of runs that ended in the last hour and day, and their durations.

Counts follow the index of ended runs, each up to a cap; durations are those of the newest runs in each span of time.
The number of bars bounds the work, not the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from django.db.models import DurationField, ExpressionWrapper, F

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, count_capped, samples
from durable.models import Run
from durable.models.run import RunQuerySet

__all__ = ["Bar", "Throughput", "last_day", "last_hour"]

CAP: Final = 2_000  # runs that are counted for one bar
SAMPLE: Final = 200  # runs from which a percentile is computed
BAR_SAMPLE: Final = 50  # runs from which a bar's percentiles are computed

_TOOK: Final = ExpressionWrapper(F("finished_at") - F("created_at"), DurationField())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The runs that ended from `begins` on, within the chart's `width`.

    `median` and `slow` are computed from the newest `BAR_SAMPLE` of these runs.
    """

    begins: datetime
    count: Count
    median: float | None = None
    slow: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The data of one chart.

    Of the newest `sampled` runs of the whole span, `failed` have failed, and `median` and `slow` (the 95th percentile)
    are the seconds from creation to end; None if there are no runs.
    """

    width: timedelta
    bars: Sequence[Bar]
    failed: int
    sampled: int
    median: float | None
    slow: float | None

    @property
    def total(self) -> Count:
        """The total of all bars."""
        counts = [bar.count for bar in self.bars]
        return Count(number=sum(each.number for each in counts), is_capped=any(each.is_capped for each in counts))

    @property
    def most(self) -> int:
        """The count of the highest bar."""
        return max((bar.count.number for bar in self.bars), default=0)

    @property
    def slowest(self) -> float:
        """The highest `slow` of the bars, in seconds."""
        return max((bar.slow for bar in self.bars if bar.slow is not None), default=0.0)


def last_hour(now: datetime, within: RunQuerySet | None = None) -> Throughput:
    """Return the last hour in bars of two minutes; three statements."""
    return _measured(now, timedelta(minutes=2), 30, within)


def last_day(now: datetime, within: RunQuerySet | None = None) -> Throughput:
    """Return the last day in bars of an hour; three statements."""
    return _measured(now, timedelta(hours=1), 24, within)


def _measured(now: datetime, width: timedelta, number: int, within: RunQuerySet | None) -> Throughput:
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    begin = now - width * number
    edges = [begin + width * each for each in range(number + 1)]
    spans = [
        runs.filter(finished_at__gte=start, finished_at__lt=end).order_by("finished_at")
        for start, end in pairwise(edges)
    ]
    ended = runs.filter(finished_at__gte=begin, finished_at__lt=now).order_by("-finished_at")
    counts = count_capped(spans, CAP)
    took_of_bars = samples([each.order_by("-finished_at").annotate(took=_TOOK) for each in spans], "took", BAR_SAMPLE)
    newest = list(ended.values_list("created_at", "finished_at", "state")[:SAMPLE])
    took = [(finished - created).total_seconds() for created, finished, _ in newest if finished is not None]
    median, slow = _percentiles(took)
    bars = []
    for start, count, durations in zip(edges, counts, took_of_bars, strict=False):
        usual, long = _percentiles([_seconds(each) for each in durations])
        bars.append(Bar(begins=start, count=count, median=usual, slow=long))
    return Throughput(
        width=width,
        bars=bars,
        failed=sum(state == RunState.FAILED for _, _, state in newest),
        sampled=len(took),
        median=median,
        slow=slow,
    )


def _percentiles(took: list[float]) -> tuple[float | None, float | None]:
    """Return the median and the 95th percentile, None for an empty list."""
    if not took:
        return None, None
    took = sorted(took)
    return took[len(took) // 2], took[len(took) * 95 // 100]


def _seconds(duration: timedelta | int) -> float:
    """Convert a duration from the database: a database without the type returns microseconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration / 1_000_000
