"""Rollups: how many runs ended in each minute and half hour, counted by the sweep, minute by minute, up to a watermark.

A run's end is counted once, in the transaction that moves the watermark past its minute. A run is visible some time
after its `finished_at`: at the commit of its worker, or of the user's transaction that cancelled it. So the watermark
stays behind the oldest transaction that may still make a run visible. On PostgreSQL that is known: the number of one
look's transaction is compared with the oldest transaction in progress at a later one. A transaction of this database
that stays open therefore holds the figures back, and they say where they end. SQLite has one writer at a time, which is
this one. On other databases the watermark stays `WITHOUT_SNAPSHOTS` behind.

`finished_at` is the time of the process that wrote it. `MARGIN` is what the clocks may differ, and what may pass
between that reading of the clock and the write. What becomes visible later than all this is in no chart.

Durations are counted in classes, each a fifth longer than the last: a few counts give the percentiles of any number of
runs. Nothing here changes a run.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, transaction

from durable.conf import conf
from durable.core.records import RunState
from durable.models import Rollup, RollupProgress, Run
from durable.models.rows import unpack

SHORTEST: Final = 0.001  # seconds; shorter durations are in class 0
CLASSES: Final = 4  # for each doubling


def class_of(seconds: float) -> int:
    return math.floor(math.log(max(seconds, SHORTEST) / SHORTEST) / math.log(2) * CLASSES)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the percentile of durations in seconds, within a tenth; None without runs.

    `counts` is the number of runs in each class.
    """
    total = sum(counts.values())
    if not total:
        return None
    seen, wanted = 0, share * total
    for each in sorted(counts):
        seen += counts[each]
        if seen >= wanted:
            break
    return float(SHORTEST * 2 ** ((each + 0.5) / CLASSES))


MINUTE: Final = timedelta(minutes=1)
HALF_HOUR: Final = timedelta(minutes=30)
MARGIN: Final = timedelta(seconds=10)
WITHOUT_SNAPSHOTS: Final = timedelta(minutes=2)
AT_ONCE: Final = 15  # minutes counted by one call
BACK: Final = timedelta(hours=25)  # minutes to count when nothing is counted yet
KEPT_MINUTES: Final = timedelta(hours=3)
KEPT_HALF_HOURS: Final = timedelta(days=8)
EVERY: Final = 15.0  # seconds between two counts of one process, unless it is behind

_ONLY: Final = 1  # the key of the row with the progress

_COUNTED: Final = f"""
SELECT date_trunc('minute', finished_at), workflow, state,
  floor(ln(greatest(extract(epoch FROM finished_at - created_at)::float8, {SHORTEST}) / {SHORTEST}) / ln(2.0::float8)
    * {CLASSES})::integer, count(*)
FROM durable_run WHERE finished_at >= %s AND finished_at < %s
GROUP BY 1, 2, 3, 4
"""  # noqa: S608 - constants


# This transaction, which is newer than all earlier writers, and the oldest other one in progress. The snapshot does not
# show transactions newer than the newest ended one, but none of those is older than an earlier query. It has those of
# all databases: one that is seen in another database does not count. The sessions are read later than the snapshot, but
# a transaction never changes its database.
_SNAPSHOT: Final = """
SELECT pg_current_xact_id()::text::bigint, COALESCE(
  (SELECT min(other::text::bigint) FROM pg_snapshot_xip(pg_current_snapshot()) AS other
    WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_xid = other::xid AND datname <> current_database())
      AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE transaction = other::xid AND database <> current_database())),
  pg_current_xact_id()::text::bigint)
"""


class Roller:
    """Counts newly ended runs at intervals, in one process."""

    def __init__(self) -> None:
        self._next = 0.0

    def look(self, now: datetime) -> None:
        """Count, if it is time."""
        if time.monotonic() < self._next:
            return
        is_behind = roll_up(now)
        self._next = time.monotonic() + (0.0 if is_behind else EVERY)


def roll_up(now: datetime) -> bool:
    """Count newly ended runs; return whether more could be counted now.

    One call counts up to `AT_ONCE` minutes, from the first one in which a run ended.

    One process counts at a time; another one returns at once.
    """
    alias = conf.DATABASE
    progress = RollupProgress.objects.using(alias)
    if not progress.filter(pk=_ONLY).exists():
        progress.bulk_create([RollupProgress(pk=_ONLY, until=_floor(now - BACK, MINUTE))], ignore_conflicts=True)
    with transaction.atomic(using=alias):
        if connections[alias].vendor == "sqlite":
            progress.filter(pk=_ONLY).update(asked_xid=0)  # from here on there is no other writer
        row = _locked(progress)
        if row is None:
            return False
        visible = _floor(_visible(row, now), MINUTE)
        if visible > row.until:
            begin = _first_end(row.until, visible)
            until = min(visible, begin + AT_ONCE * MINUTE)
            _count(begin, until)
            row.until = until
        row.save(using=alias)
        return visible > row.until


def _locked(progress: Any) -> RollupProgress | None:
    """Return the progress, locked; None if another process has locked it."""
    features = connections[conf.DATABASE].features
    found = progress.filter(pk=_ONLY)
    if features.has_select_for_update:
        found = found.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
    row: RollupProgress | None = found.first()
    return row


def _visible(row: RollupProgress, now: datetime) -> datetime:
    """Return the time before which all ends of runs are visible; record the present query in `row`."""
    connection = connections[conf.DATABASE]
    if connection.vendor == "sqlite":
        return now - MARGIN
    if connection.vendor != "postgresql":
        return now - WITHOUT_SNAPSHOTS
    with connection.cursor() as cursor:
        cursor.execute(_SNAPSHOT)
        [(own, oldest)] = cursor.fetchall()
    visible = row.until
    if row.asked_at is not None and oldest >= row.asked_xid:
        visible = row.asked_at - MARGIN
        row.asked_at = None
    if row.asked_at is None:
        row.asked_at, row.asked_xid = now, own
    return visible


# -- counting


@dataclass(slots=True)
class _Tally:
    """The runs that ended in one span."""

    states: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    durations: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, state: str, duration: int, number: int) -> None:
        self.states[state] += number
        self.durations[duration] += number

    def row(self, workflow: str, width: timedelta, begins: datetime) -> Rollup:
        return Rollup(
            workflow=workflow,
            width=int(width.total_seconds()),
            begins=begins,
            completed=self.states[RunState.COMPLETED.value],
            failed=self.states[RunState.FAILED.value],
            cancelled=self.states[RunState.CANCELLED.value],
            durations={str(each): number for each, number in sorted(self.durations.items())},
        )


def _first_end(since: datetime, until: datetime) -> datetime:
    """Return the minute of the first end from `since` on, at most `until`.

    Time in which no run ended needs no counting.
    """
    ends = Run.objects.using(conf.DATABASE).filter(finished_at__gte=since).order_by("finished_at")
    first = ends.values_list("finished_at", flat=True).first()
    return until if first is None else min(_floor(first, MINUTE), until)


def _count(since: datetime, until: datetime) -> None:
    """Write the numbers of the minutes, add them to their half hours, and delete old rows."""
    minutes: dict[tuple[str, datetime], _Tally] = defaultdict(_Tally)
    half_hours: dict[tuple[str, datetime], _Tally] = defaultdict(_Tally)
    for moment, workflow, state, duration, number in _ended(since, until):
        for name in ("", workflow):
            minutes[name, moment].add(state, duration, number)
            half_hours[name, _floor(moment, HALF_HOUR)].add(state, duration, number)
    rows = Rollup.objects.using(conf.DATABASE)
    rows.bulk_create([tally.row(name, MINUTE, begins) for (name, begins), tally in minutes.items()])
    _add_known(half_hours, _floor(since, HALF_HOUR), until)
    rows.bulk_create(
        [tally.row(name, HALF_HOUR, begins) for (name, begins), tally in half_hours.items()],
        update_conflicts=True,
        unique_fields=["workflow", "width", "begins"],
        update_fields=["completed", "failed", "cancelled", "durations"],
    )
    for width, kept in ((MINUTE, KEPT_MINUTES), (HALF_HOUR, KEPT_HALF_HOURS)):
        rows.filter(width=int(width.total_seconds()), begins__lt=until - kept).delete()


def _add_known(half_hours: dict[tuple[str, datetime], _Tally], since: datetime, until: datetime) -> None:
    """Add the numbers already stored for these half hours."""
    known = Rollup.objects.using(conf.DATABASE).filter(
        width=int(HALF_HOUR.total_seconds()), begins__gte=since, begins__lt=until
    )
    for row in known:
        tally = half_hours.get((row.workflow, row.begins))
        if tally is None:
            continue
        for state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
            tally.states[state.value] += getattr(row, state.value)
        for duration, number in row.durations.items():
            tally.durations[int(duration)] += number


def _ended(since: datetime, until: datetime) -> Iterable[tuple[datetime, str, str, int, int]]:
    """Return minutes, workflows, states and classes of durations, each with the number of its runs."""
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return _ended_one_by_one(since, until)
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, [since, until])
        rows: Sequence[Any] = cursor.fetchall()
    return [(moment, unpack(workflow), state, duration, number) for moment, workflow, state, duration, number in rows]


def _ended_one_by_one(since: datetime, until: datetime) -> Iterator[tuple[datetime, str, str, int, int]]:
    found = Run.objects.using(conf.DATABASE).filter(finished_at__gte=since, finished_at__lt=until).order_by()
    rows = found.values_list("created_at", "finished_at", "workflow", "state").iterator()
    for created_at, finished_at, workflow, state in rows:
        if finished_at is None:
            continue
        took = (finished_at - created_at).total_seconds()
        yield _floor(finished_at, MINUTE), workflow, state, class_of(took), 1


def _floor(moment: datetime, width: timedelta) -> datetime:
    """Return the beginning of the span around the moment."""
    return moment.fromtimestamp(moment.timestamp() // width.total_seconds() * width.total_seconds(), tz=moment.tzinfo)
