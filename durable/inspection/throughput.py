"""How many runs ended in the last hour and day, and how long they took.

Counts go along the index of what ended, each no further than a cap; how long runs took is told of the newest of each span of
time. The work is bounded by the number of bars, not by the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from durable.conf import conf
from durable.core.entries import RunState
from durable.inspection.bounded import Count, capped_counts
from durable.models import Run
from durable.querysets import RunQuerySet

__all__ = ["Bar", "Throughput", "last_day", "last_hour"]

CAP: Final = 2_000  # runs that are counted for one bar
SAMPLE: Final = 200  # runs of which a percentile is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What ended from `begins` on, within the chart's `width`."""

    begins: datetime
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A chart's worth. Of the newest `sampled` runs of the whole span, `failed` have failed, and `median` and `slow` (the
    95th percentile) are the seconds from creation to end; None where there are none."""

    width: timedelta
    bars: Sequence[Bar]
    failed: int
    sampled: int
    median: float | None
    slow: float | None

    @property
    def total(self) -> Count:
        """Of all bars."""
        counts = [bar.count for bar in self.bars]
        return Count(number=sum(each.number for each in counts), is_capped=any(each.is_capped for each in counts))

    @property
    def most(self) -> int:
        """Of the highest bar."""
        return max((bar.count.number for bar in self.bars), default=0)


def last_hour(now: datetime, within: RunQuerySet | None = None) -> Throughput:
    """In bars of two minutes; two statements."""
    return _measured(now, timedelta(minutes=2), 30, within)


def last_day(now: datetime, within: RunQuerySet | None = None) -> Throughput:
    """In bars of an hour; two statements."""
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
    counts = capped_counts(spans, CAP)
    newest = list(ended.values_list("created_at", "finished_at", "state")[:SAMPLE])
    took = sorted((finished - created).total_seconds() for created, finished, _ in newest if finished is not None)
    return Throughput(
        width=width,
        bars=[Bar(begins=start, count=count) for start, count in zip(edges, counts, strict=False)],
        failed=sum(state == RunState.FAILED for _, _, state in newest),
        sampled=len(took),
        median=took[len(took) // 2] if took else None,
        slow=took[len(took) * 95 // 100] if took else None,
    )
