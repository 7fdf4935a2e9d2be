"""Failed runs by cause: the newest first, with their number, their workflows and when they failed.

Reads the tables that are written when a run fails. A constant number of statements, each count and each sample with a
cap. A pattern is text of an error's message, so it is redacted, and surfaces ask for `view_payload`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import DateTimeField, F, Func, IntegerField, OuterRef, QuerySet, Subquery, TextField, Value
from django.db.models.functions import Cast

from durable.conf import conf
from durable.core.causes import ROLLBACK, pattern_of
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, count_capped, tally
from durable.inspection.of_each import Key, OfEach
from durable.inspection.payloads import redacted
from durable.inspection.visible_failures import visible_failures
from durable.models import Build, Cause, CauseBuild, Failure, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP: Final = 10_000  # runs of a cause that are counted
MOST: Final = 50  # causes that a list has
LINE_CAP: Final = 1_000  # runs of a further cause that are counted
MOST_BUILDS: Final = 10  # builds of a cause
SAMPLE: Final = 500  # failures of a cause from which its workflows and its last day are taken
BARS: Final = 48  # of the last day
WIDTH: Final = timedelta(minutes=30)  # of a bar
_NEW: Final = timedelta(hours=1)  # where no build is known

#: What is shown instead of a pattern whose text the project's hook may hide.
HIDDEN_PATTERN: Final = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSummary:
    """A cause of failed runs.

    `count` is the number of runs that are failed because of it. The first of these failed at `since`, the last one at
    `last_at`. `workflows`, the one with the most failures first, and `bars`, the failures in each half hour of the last
    day, come from the newest `SAMPLE` failures; `is_sampled` says that the last day had more. `builds` are those builds
    of the code whose workers have seen it: the newest one in a list, the newest `MOST_BUILDS` of a single cause.
    `is_new` says that it was first seen since the newest build appeared or, where no build is known, within the last
    hour. `pattern` is redacted; show it to users with `view_payload`. `note` is what an operator has said of it, "" for
    nothing; it is left out for a user who may see some runs only.
    """

    fingerprint: str
    place: str
    error_type: str
    pattern: str
    count: Count
    first_seen_at: datetime
    since: datetime | None
    last_at: datetime | None
    workflows: Sequence[str]
    bars: Sequence[int]
    is_sampled: bool
    newest_run: str
    muted_at: datetime | None
    muted_by: str
    note: str
    noted_at: datetime | None
    noted_by: str
    is_new: bool
    builds: Sequence[str]

    @property
    def is_muted(self) -> bool:
        """Whether it is left out of what needs attention."""
        return self.muted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """A cause of failed runs in one line: where they failed, how many they are, and the newest of them."""

    fingerprint: str
    place: str
    error_type: str
    count: Count
    newest_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSpread:
    """The workflows, queues and workers of the newest `SAMPLE` failed runs of a cause, by number."""

    workflows: Sequence[tuple[str, int]]
    queues: Sequence[tuple[str, int]]
    workers: Sequence[tuple[str, int]]
    is_sampled: bool


def list_causes(
    now: datetime, *, muted: bool | None = None, most: int = MOST, within: RunQuerySet | None = None
) -> list[CauseSummary]:
    """Return the causes of failed runs, the one with the newest failure first; at most `most` of them.

    `muted` limits them to muted ones, or to the others. At most four statements.

    `within` limits the runs, for example to those that a user may see. Their failures are looked for in a window
    (`durable.inspection.visible_failures`), and all numbers are of runs that are still failed. At most five statements.
    """
    if within is not None:
        return _within(within, now, muted, most)
    return _summaries(list(_newest_first(muted)[:most]), now)


def further_causes(*, after: int, most: int) -> list[CauseLine]:
    """Return up to `most` causes that are not muted, behind the first `after` of `list_causes`; two statements."""
    causes = list(_newest_first(muted=False)[after : after + most])
    counts = _open_of_each(causes, LINE_CAP)
    return [
        CauseLine(
            fingerprint=cause.fingerprint,
            place=cause.place,
            error_type=cause.error_type,
            count=count,
            newest_run=cause.newest_run,
        )
        for cause, count in zip(causes, counts, strict=True)
        if cause.newest_run and count
    ]


def find_cause(fingerprint: str, now: datetime, within: RunQuerySet | None = None) -> CauseSummary | None:
    """Return the cause with this fingerprint, with or without failed runs; None if there is none.

    `within` is that of `list_causes`: a cause for which none of these runs is failed is none.
    """
    if within is not None:
        return next(iter(_within(within, now, None, 1, fingerprint)), None)
    found = _summaries(list(_known().filter(fingerprint=fingerprint)), now)
    if not found:
        return None
    builds = _builds().filter(cause__fingerprint=fingerprint).values_list("build", flat=True)
    return replace(found[0], builds=list(builds[:MOST_BUILDS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseOfRun:
    """The cause of a failed run: how many runs are failed because of it, and when the first of these failed.

    Both are None where they were not counted.
    """

    fingerprint: str
    count: Count | None
    since: datetime | None


def cause_of(run: Run, within: RunQuerySet | None = None) -> CauseOfRun | None:
    """Return the cause of a failed run, None for any other; at most three statements.

    With `within`, the runs that a reader may see, no runs are counted: to find those of the cause may take long.
    """
    if run.state != RunState.FAILED:
        return None
    open_ones = Failure.objects.using(conf.DATABASE).filter(is_open=True)
    failure = open_ones.filter(pk=run.pk).select_related("cause").first()
    if failure is None:
        return None
    if within is not None:
        return CauseOfRun(fingerprint=failure.cause.fingerprint, count=None, since=None)
    of_cause = open_ones.filter(cause=failure.cause_id)
    [count] = count_capped([of_cause.order_by("-failed_at")], CAP)
    since = of_cause.order_by("failed_at").values_list("failed_at", flat=True).first()
    return CauseOfRun(fingerprint=failure.cause.fingerprint, count=count, since=since)


def spread_of(fingerprint: str, within: RunQuerySet | None = None) -> CauseSpread:
    """Return the workflows, queues and workers of the newest failed runs of a cause; one statement."""
    # Not as a join, for which PostgreSQL might read the table of all failures.
    cause = Cause.objects.using(conf.DATABASE).filter(fingerprint=fingerprint).values("pk")[:1]
    failures = _failures(within).filter(cause=Subquery(cause), is_open=True).order_by("-failed_at")
    rows = list(failures.values_list("workflow", "queue", "worker")[: SAMPLE + 1])
    workflows, queues, workers = (
        Counter(row[each] for row in rows[:SAMPLE] if row[each]).most_common() for each in range(3)
    )
    return CauseSpread(workflows=workflows, queues=queues, workers=workers, is_sampled=len(rows) > SAMPLE)


def _failures(within: RunQuerySet | None) -> QuerySet[Failure]:
    failures = Failure.objects.using(conf.DATABASE)
    return failures if within is None else failures.filter(run__in=within.order_by().values("pk"))


def _builds() -> QuerySet[CauseBuild]:
    """Return the builds that have seen causes, the newest first."""
    return CauseBuild.objects.using(conf.DATABASE).order_by("-first_seen_at")


def _newest_first(muted: bool | None) -> QuerySet[Any]:
    """Return the causes that have failed runs, the one with the newest failure first.

    `muted` chooses the muted ones or the others; None: all.
    """
    causes = _known().filter(last_at__isnull=False)
    if muted is not None:
        causes = causes.filter(muted_at__isnull=not muted)
    return causes.order_by("-last_at", "pk")


def _known() -> QuerySet[Any]:
    """Return all causes, each with the times of its first and last failure, and the newest of the failed runs."""
    open_ones = Failure.objects.using(conf.DATABASE).filter(cause=OuterRef("pk"), is_open=True)
    last, first = open_ones.order_by("-failed_at"), open_ones.order_by("failed_at")
    causes: QuerySet[Any] = _with_builds().annotate(
        last_at=Subquery(last.values("failed_at")[:1]),
        since=Subquery(first.values("failed_at")[:1]),
        newest_run=Subquery(last.values("run_id")[:1]),
    )
    return causes


def _with_builds() -> QuerySet[Any]:
    """Return all causes, each with the newest build that has seen it, and when the newest of all appeared."""
    deploys = Build.objects.using(conf.DATABASE).order_by("-first_seen_at").values("first_seen_at")
    causes: QuerySet[Any] = Cause.objects.using(conf.DATABASE).annotate(
        newest_deploy=Subquery(deploys[:1]),
        newest_build=Subquery(_builds().filter(cause=OuterRef("pk")).values("build")[:1]),
    )
    return causes


def _within(
    within: RunQuerySet, now: datetime, muted: bool | None, most: int, fingerprint: str = ""
) -> list[CauseSummary]:
    """Return the causes for which some of these runs are failed, or the one with this fingerprint."""
    found = visible_failures(within, CAP)
    causes = _with_builds().filter(pk__in=found.by_cause)
    if muted is not None:
        causes = causes.filter(muted_at__isnull=not muted)
    if fingerprint:
        causes = causes.filter(fingerprint=fingerprint)
    shown = sorted(causes, key=lambda cause: (-found.by_cause[cause.pk][0].failed_at.timestamp(), cause.pk))[:most]
    begin = now - BARS * WIDTH
    spreads = []
    for cause in shown:
        failures = found.by_cause[cause.pk]
        cause.last_at, cause.since, cause.newest_run = failures[0].failed_at, failures[-1].failed_at, failures[0].run_id
        cause.first_seen_at = cause.since  # perhaps it was seen before in a run out of sight
        newest = failures[:SAMPLE]
        spreads.append(
            _Spread(
                first_seen_at=cause.since,
                count=Count(number=min(len(failures), CAP), is_capped=found.is_cut or len(failures) > CAP),
                workflows=Counter(each.workflow for each in newest),
                bars=_with_last(Counter((each.failed_at - begin) // WIDTH for each in newest)),
            )
        )
    # A build may have seen it in runs out of sight alone, and a note may tell of them.
    unseen: dict[str, Any] = {"builds": [], "note": "", "noted_at": None, "noted_by": ""}
    return [replace(each, **unseen) for each in _told(shown, spreads, now)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The number of a cause's failed runs, and how many of its newest failures each workflow and each bar has."""

    first_seen_at: datetime
    count: Count
    workflows: Mapping[str, int]
    bars: Mapping[int, int]


def _summaries(causes: Sequence[Any], now: datetime) -> list[CauseSummary]:
    if not causes:
        return []
    counts = _open_of_each(causes, CAP)
    workflows, bars = _spread_of_newest(_failures_of_each(causes), now - BARS * WIDTH)
    spreads = [
        _Spread(first_seen_at=cause.first_seen_at, count=count, workflows=names, bars=shown)
        for cause, count, names, shown in zip(causes, counts, workflows, bars, strict=True)
    ]
    return _told(causes, spreads, now)


def _failures_of_each(causes: Sequence[Any], *, only_open: bool = False) -> OfEach:
    """Return the failures of each cause, the newest first. With `only_open`, those of runs that are failed now."""
    failures = Failure.objects.using(conf.DATABASE).filter(cause=Key()).order_by("-failed_at")
    return OfEach(failures.filter(is_open=True) if only_open else failures, [cause.pk for cause in causes])


def _open_of_each(causes: Sequence[Any], cap: int) -> list[Count]:
    """Return how many runs are failed because of each cause, counted up to `cap`; one statement."""
    return count_capped([_failures_of_each(causes, only_open=True)], cap)


def _told(causes: Sequence[Any], spreads: Sequence[_Spread], now: datetime) -> list[CauseSummary]:
    return [
        CauseSummary(
            fingerprint=cause.fingerprint,
            place=cause.place,
            error_type=cause.error_type,
            pattern=pattern,
            count=spread.count,
            first_seen_at=spread.first_seen_at,
            since=cause.since,
            last_at=cause.last_at,
            workflows=sorted(spread.workflows, key=lambda name: (-spread.workflows[name], name)),
            bars=[spread.bars.get(each, 0) for each in range(BARS)],
            is_sampled=sum(spread.bars.values()) >= SAMPLE and min(spread.bars) >= 0,
            newest_run=cause.newest_run or "",
            muted_at=cause.muted_at,
            muted_by=cause.muted_by,
            note=cause.note,
            noted_at=cause.noted_at,
            noted_by=cause.noted_by,
            is_new=cause.first_seen_at >= (cause.newest_deploy or now - _NEW),
            builds=[cause.newest_build] if cause.newest_build else [],
        )
        for cause, spread, pattern in zip(causes, spreads, _shown_patterns(causes), strict=True)
    ]


def _spread_of_newest(newest: OfEach, begin: datetime) -> tuple[list[Mapping[str, int]], list[Mapping[int, int]]]:
    """Return how many of the newest failures of each cause each workflow had, and how many each bar from `begin` on.

    Those of before have negative bars. The database counts: one statement, and at most `BARS` rows a cause beside its
    workflows.
    """
    bar = Cast(_Bar("failed_at", Value(begin, output_field=DateTimeField())), TextField())
    of_workflow, of_bar = (
        OfEach(newest.queryset.annotate(counted=counted), newest.keys) for counted in (F("workflow"), bar)
    )
    found = tally([of_workflow, of_bar], "counted", SAMPLE)
    names, bars = found[: len(newest)], found[len(newest) :]
    return (
        [{unpack(name): number for name, number in each.items()} for each in names],
        [_with_last(each) for each in bars],
    )


def _with_last(bars: Mapping[Any, int]) -> Mapping[int, int]:
    """Return the bars by their numbers: what failed since `now`, by another clock, is in the last one."""
    found: Counter[int] = Counter()
    for bar, number in bars.items():
        found[max(-1, min(BARS - 1, int(bar)))] += number
    return found


class _Bar(Func):
    """The number of bars from one moment to another."""

    output_field = IntegerField()

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL: the difference is an interval on PostgreSQL, and microseconds on SQLite."""
        sides = [compiler.compile(each) for each in self.get_source_expressions()]
        passed, given = connection.ops.subtract_temporals("DateTimeField", *sides)
        if connection.vendor == "postgresql":
            passed = f"extract(epoch FROM {passed}) * 1000000"
        return f"CAST(FLOOR(({passed}) / {WIDTH / timedelta(microseconds=1)}) AS integer)", tuple(given)


def _shown_patterns(causes: Sequence[Any]) -> list[str]:
    """Return the patterns as they may be shown.

    A redaction hook gets the whole message of a failed run: a pattern may lack the text that shows what to hide. The
    error of a stopped compensation is not that of its run, so its pattern is hidden then.
    """
    if not conf.REDACT:
        return [cause.pattern for cause in causes]
    runs = Run.objects.using(conf.DATABASE).only("id", "workflow", "error")
    found = runs.in_bulk([cause.newest_run for cause in causes if cause.newest_run])
    return [_redacted_pattern(cause, found.get(cause.newest_run or "")) for cause in causes]


def _redacted_pattern(cause: Any, run: Run | None) -> str:
    if run is None or run.error is None or cause.place.endswith(ROLLBACK):
        return HIDDEN_PATTERN
    return pattern_of(str(redacted(run.workflow, "error", run.error.message)))
