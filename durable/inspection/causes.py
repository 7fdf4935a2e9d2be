"""Failed and held runs by cause, the facts about them for findings and bulks, and the runs that repeat a failed one.

Reads the tables that are written when a run fails. A constant number of statements, with caps for counts and samples. A
pattern comes from an error's message, so it is redacted, and surfaces require `view_payload`.

`failed_runs` reads the newest `NEWEST` failed runs.

A failed run stays failed when another run repeats it. To recover both may repeat the same effects.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, runtime_checkable

from django.db.models import Count as models_Count
from django.db.models import (
    DateTimeField,
    Exists,
    F,
    Func,
    IntegerField,
    OuterRef,
    QuerySet,
    Subquery,
    TextField,
    Value,
)
from django.db.models.functions import Cast, Substr
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.causes import ROLLBACK, pattern_of
from durable.core.records import ENDED, RunState
from durable.core.summary import KIND_LENGTH, SummaryKind, kind_of_stored
from durable.core.tally import HELD
from durable.inspection.counting import Count, Key, OfEach, count_capped, tally
from durable.inspection.humanize import printable, thousands
from durable.inspection.pagination import visible_failures
from durable.inspection.payloads import redacted
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import rows_within, runs_within
from durable.models import Build, Cause, CauseBuild, Failure, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP: Final = 10_000  # runs of a cause to count
MOST: Final = 50  # causes of a list
LINE_CAP: Final = 1_000  # runs of a further cause to count
MOST_BUILDS: Final = 10  # builds of a cause
SAMPLE: Final = 500  # failures of a cause that give its workflows and its last day
BARS: Final = 48  # of the last day
WIDTH: Final = timedelta(minutes=30)  # of a bar
#: The width of a bar, by the time span of a single cause's chart.
SPANS: Final = {"day": WIDTH, "week": timedelta(days=7) / BARS, "month": timedelta(days=30) / BARS}
LONG_SAMPLE: Final = 10_000  # failures to read for more than a day
_NEW: Final = timedelta(hours=1)  # where no build is known

#: Shown instead of a pattern whose text the project's hook may hide.
HIDDEN_PATTERN: Final = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSummary:
    """A cause of failed and of held runs. A held run is open, and a step of it waits for a person.

    `count` is the number of runs that are now failed or held because of it, `held` that of the held ones among them.
    The first failed or was held at `since`, the last at `last_at`. `workflows` (the most frequent first) and `bars`
    (failures in each half hour of the last day, or of a longer one of SPANS) come from the newest failures;
    `is_sampled`: there were more. `builds` are the builds whose workers have seen it: the newest one in a list, the
    newest `MOST_BUILDS` of a single cause. `is_new`: it was first seen since the newest build appeared or, if no build
    is known, within the last hour. `pattern` is redacted; show it to users with `view_payload`. `note` is an operator's
    note or ""; it is omitted for users who may see only some runs.
    """

    fingerprint: str
    place: str
    error_type: str
    pattern: str
    count: Count
    held: Count
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
        return self.muted_at is not None

    @property
    def failed(self) -> Count:
        number = max(0, self.count.number - self.held.number)
        return Count(number=number, is_capped=self.count.is_capped or self.held.is_capped)

    @property
    def numbers(self) -> str:
        """How many runs are failed, and how many are held: "12 failed, 3 held"; "12 failed" if none is held."""
        told = []
        if self.failed or not self.held:
            text = ngettext("%(number)s failed", "%(number)s failed", self.failed.number)
            told.append(text % {"number": self.failed})
        if self.held:
            told.append(_("%(number)s held") % {"number": self.held})
        return ", ".join(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """A cause in one line: where its runs failed, their number, and the newest of them."""

    fingerprint: str
    place: str
    error_type: str
    count: Count
    newest_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSpread:
    """The numbers of a cause's newest `SAMPLE` failed runs by workflow, queue and worker."""

    workflows: Sequence[tuple[str, int]]
    queues: Sequence[tuple[str, int]]
    workers: Sequence[tuple[str, int]]
    is_sampled: bool


def list_causes(
    now: datetime, *, muted: bool | None = None, most: int = MOST, within: RunQuerySet | None = None
) -> list[CauseSummary]:
    """Return the causes of failed and held runs, the one with the newest failure first; at most `most` of them.

    `muted` selects the muted ones or the others. At most five statements.

    With `within`, failures are searched for in a window (`durable.inspection.pagination`), and all numbers count runs
    that are still failed or held. At most six statements.
    """
    if within is not None:
        return _within(within, now, muted, most)
    return _summaries(list(_newest_first(muted)[:most]), now)


def causes_and_lines(now: datetime, *, most: int, lines: int) -> tuple[list[CauseSummary], list[CauseLine]]:
    """Return the first `most` unmuted causes, as `list_causes` does, and up to `lines` of the following ones."""
    causes = list(_newest_first(muted=False)[: most + lines])
    return _summaries(causes[:most], now), _lines(causes[most:])


def _lines(causes: Sequence[Any]) -> list[CauseLine]:
    if not causes:
        return []
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


def find_cause(
    fingerprint: str, now: datetime, within: RunQuerySet | None = None, *, span: str = "day"
) -> CauseSummary | None:
    """Return the cause with this fingerprint, with or without failed runs, or None.

    With `within`, as in `list_causes`, also None if none of these runs is failed because of it. `span`, one of SPANS,
    is the time of its bars.
    """
    if within is not None:
        return next(iter(_within(within, now, None, 1, fingerprint, span)), None)
    found = _summaries(list(_known().filter(fingerprint=fingerprint)), now, span)
    if not found:
        return None
    builds = _builds().filter(cause__fingerprint=fingerprint).values_list("build", flat=True)
    return replace(found[0], builds=list(builds[:MOST_BUILDS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseOfRun:
    """The cause of a failed or held run: how many runs are failed or held because of it, and since when the first is.

    Both are None where they were not counted.
    """

    fingerprint: str
    count: Count | None
    since: datetime | None


def cause_of(run: Run, within: RunQuerySet | None = None) -> CauseOfRun | None:
    """Return the cause of a failed or held run, None for any other; at most three statements, one for other open runs.

    With `within`, the runs that a reader may see, no runs are counted, because finding those of the cause may take
    long.
    """
    if run.state in ENDED and run.state != RunState.FAILED:
        return None
    open_ones = Failure.objects.using(read_alias()).filter(is_open=True)
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
    """Count the newest failed and held runs of a cause by workflow, queue and worker; one statement."""
    # Not as a join, for which PostgreSQL might read the table of all failures.
    cause = Cause.objects.using(read_alias()).filter(fingerprint=fingerprint).values("pk")[:1]
    failures = _failures(within).filter(cause=Subquery(cause), is_open=True).order_by("-failed_at")
    rows = list(failures.values_list("workflow", "queue", "worker")[: SAMPLE + 1])
    workflows, queues, workers = (
        Counter(row[each] for row in rows[:SAMPLE] if row[each]).most_common() for each in range(3)
    )
    return CauseSpread(workflows=workflows, queues=queues, workers=workers, is_sampled=len(rows) > SAMPLE)


def _failures(within: RunQuerySet | None) -> QuerySet[Failure]:
    return rows_within(Failure.objects.using(read_alias()), within)


def _builds() -> QuerySet[CauseBuild]:
    return CauseBuild.objects.using(read_alias()).order_by("-first_seen_at")


def _newest_first(muted: bool | None) -> QuerySet[Any]:
    """Return the causes that have failed or held runs, the one with the newest failure first.

    `muted` selects the muted ones or the others; None: all.
    """
    causes = _known().filter(last_at__isnull=False)
    if muted is not None:
        causes = causes.filter(muted_at__isnull=not muted)
    return causes.order_by("-last_at", "pk")


def _known() -> QuerySet[Any]:
    """Return all causes, each with the times of its first and last failure, and the newest of the failed runs."""
    open_ones = Failure.objects.using(read_alias()).filter(cause=OuterRef("pk"), is_open=True)
    last, first = open_ones.order_by("-failed_at"), open_ones.order_by("failed_at")
    causes: QuerySet[Any] = _with_builds().annotate(
        last_at=Subquery(last.values("failed_at")[:1]),
        since=Subquery(first.values("failed_at")[:1]),
        newest_run=Subquery(last.values("run_id")[:1]),
    )
    return causes


def _with_builds() -> QuerySet[Any]:
    """Return all causes, each with the newest build that has seen it, and when the newest of all appeared."""
    deploys = Build.objects.using(read_alias()).order_by("-first_seen_at").values("first_seen_at")
    causes: QuerySet[Any] = Cause.objects.using(read_alias()).annotate(
        newest_deploy=Subquery(deploys[:1]),
        newest_build=Subquery(_builds().filter(cause=OuterRef("pk")).values("build")[:1]),
    )
    return causes


def _within(
    within: RunQuerySet, now: datetime, muted: bool | None, most: int, fingerprint: str = "", span: str = "day"
) -> list[CauseSummary]:
    """Return the causes of which some of these runs are failed, or only the one with this fingerprint."""
    by_cause, is_cut = visible_failures(within, CAP)
    causes = _with_builds().filter(pk__in=by_cause)
    if muted is not None:
        causes = causes.filter(muted_at__isnull=not muted)
    if fingerprint:
        causes = causes.filter(fingerprint=fingerprint)
    shown = sorted(causes, key=lambda cause: (-by_cause[cause.pk][0].failed_at.timestamp(), cause.pk))[:most]
    width, sample = SPANS[span], SAMPLE if span == "day" else LONG_SAMPLE
    begin = now - BARS * width
    spreads = []
    for cause in shown:
        failures = by_cause[cause.pk]
        cause.last_at, cause.since, cause.newest_run = failures[0].failed_at, failures[-1].failed_at, failures[0].run_id
        cause.first_seen_at = cause.since  # it may have been seen before in a run that the reader may not see
        newest = failures[:sample]
        spreads.append(
            _Spread(
                count=Count(number=min(len(failures), CAP), is_capped=is_cut or len(failures) > CAP),
                held=_capped(sum(each.is_held for each in failures)),
                workflows=Counter(each.workflow for each in newest),
                bars=_with_last(Counter((each.failed_at - begin) // width for each in newest)),
            )
        )
    # A build may have seen it only in runs that the reader may not see, and a note may mention them.
    unseen: dict[str, Any] = {"builds": [], "note": "", "noted_at": None, "noted_by": ""}
    return [replace(each, **unseen) for each in _told(shown, spreads, now, sample)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The number of a cause's failed runs, and its newest failures counted by workflow and by bar."""

    count: Count
    held: Count
    workflows: Mapping[str, int]
    bars: Mapping[int, int]


def _summaries(causes: Sequence[Any], now: datetime, span: str = "day") -> list[CauseSummary]:
    if not causes:
        return []
    counts, held = _open_of_each(causes, CAP), held_by_cause()
    width, sample = SPANS[span], SAMPLE if span == "day" else LONG_SAMPLE
    workflows, bars = _spread_of_newest(_failures_of_each(causes), now - BARS * width, width, sample)
    spreads = [
        _Spread(count=count, held=_capped(held[cause.pk]), workflows=names, bars=shown)
        for cause, count, names, shown in zip(causes, counts, workflows, bars, strict=True)
    ]
    return _told(causes, spreads, now, sample)


def _failures_of_each(causes: Sequence[Any], *, only_open: bool = False) -> OfEach:
    """Return the failures of each cause, the newest first; with `only_open`, only those of runs that are failed or held
    now.
    """
    failures = Failure.objects.using(read_alias()).filter(cause=Key()).order_by("-failed_at")
    return OfEach(failures.filter(is_open=True) if only_open else failures, [cause.pk for cause in causes])


def _open_of_each(causes: Sequence[Any], cap: int) -> list[Count]:
    """Count the failed and held runs of each cause, up to `cap`; one statement."""
    return count_capped([_failures_of_each(causes, only_open=True)], cap)


def held_by_cause() -> Counter[int]:
    """Return the number of held runs by the key of their cause; counts the newest `CAP`. One statement."""
    held = Failure.objects.using(read_alias()).filter(is_held=True).order_by("-run_created_at", "-run_id")
    [found] = tally([held], "cause_id", CAP)
    return Counter(found)


def _capped(number: int) -> Count:
    return Count(number=min(number, CAP), is_capped=number >= CAP)


def _told(causes: Sequence[Any], spreads: Sequence[_Spread], now: datetime, sample: int) -> list[CauseSummary]:
    return [
        CauseSummary(
            fingerprint=cause.fingerprint,
            place=cause.place,
            error_type=cause.error_type,
            pattern=pattern,
            count=spread.count,
            held=spread.held,
            first_seen_at=cause.first_seen_at,
            since=cause.since,
            last_at=cause.last_at,
            workflows=sorted(spread.workflows, key=lambda name: (-spread.workflows[name], name)),
            bars=[spread.bars.get(each, 0) for each in range(BARS)],
            is_sampled=sum(spread.bars.values()) >= sample and min(spread.bars) >= 0,
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


def _spread_of_newest(
    newest: OfEach, begin: datetime, width: timedelta, sample: int
) -> tuple[list[Mapping[str, int]], list[Mapping[int, int]]]:
    """Count the newest failures of each cause by workflow, and by bar from `begin` on.

    Earlier failures have negative bars. The database counts: one statement, and at most `BARS` rows a cause in addition
    to its workflows.
    """
    bar = Cast(_Bar("failed_at", Value(begin, output_field=DateTimeField()), width=width), TextField())
    of_workflow, of_bar = (
        OfEach(newest.queryset.annotate(counted=counted), newest.keys) for counted in (F("workflow"), bar)
    )
    found = tally([of_workflow, of_bar], "counted", sample)
    names, bars = found[: len(newest)], found[len(newest) :]
    return (
        [{unpack(name): number for name, number in each.items()} for each in names],
        [_with_last(each) for each in bars],
    )


def _with_last(bars: Mapping[Any, int]) -> Mapping[int, int]:
    """Put failures later than `now`, by another clock, into the last bar; return the bars by number."""
    found: Counter[int] = Counter()
    for bar, number in bars.items():
        found[max(-1, min(BARS - 1, int(bar)))] += number
    return found


class _Bar(Func):
    """The number of bars of this `width` from one moment to another."""

    output_field = IntegerField()

    def __init__(self, *moments: Any, width: timedelta) -> None:
        super().__init__(*moments)
        self.width = width

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL: the difference is in microseconds. PostgreSQL may have a time that is infinite."""
        sides = [compiler.compile(each) for each in self.get_source_expressions()]
        passed, given = connection.ops.subtract_temporals("DateTimeField", *sides)
        if connection.vendor == "postgresql":
            later, earlier = (f"extract(epoch FROM {sql})" for sql, _ in sides)
            passed = f"GREATEST(-1e15, LEAST(1e15, ({later} - {earlier}) * 1000000))"
        return f"CAST(FLOOR(({passed}) / {self.width / timedelta(microseconds=1)}) AS integer)", tuple(given)


def _shown_patterns(causes: Sequence[Any]) -> list[str]:
    """Return the patterns, redacted for display.

    A redaction hook gets the whole message of a failed run, because a pattern may lack the text by which the hook
    decides. The error of a stopped compensation differs from its run's, so its pattern is hidden then.
    """
    if not conf.REDACT:
        return [cause.pattern for cause in causes]
    runs = Run.objects.using(read_alias()).only("id", "workflow", "error")
    found = runs.in_bulk([cause.newest_run for cause in causes if cause.newest_run])
    return [_redacted_pattern(cause, found.get(cause.newest_run or "")) for cause in causes]


def _redacted_pattern(cause: Any, run: Run | None) -> str:
    if run is None or run.error is None or cause.place.endswith(ROLLBACK):
        return HIDDEN_PATTERN
    return pattern_of(str(redacted(run.workflow, "error", run.error.message)))


NEWEST: Final = 1_000  # failed runs that are read
_BEGINNING = 400  # characters of an error's column, without its traceback: the type, and most messages
# A JSON text, possibly incomplete: the column may be cut off within the text, even in the middle of an escape.
_TEXT = r'"((?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*)'
_TYPE = re.compile(rf'^\{{"type": {_TEXT}')
_MESSAGE = re.compile(rf'"message": {_TEXT}')
_WHOLE_MESSAGE = re.compile(rf'"message": {_TEXT}"')
_TOO_LONG = "(a long message: see the run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """The columns of a failed run that findings need.

    `is_stuck`: the run stopped in the middle of its compensation. `is_mistake`: a mistake in its workflow's code
    stopped it. `is_compensated`: its steps were undone. `is_repeated`: another run repeats it, if that was asked for.
    """

    id: str
    workflow: str
    location: str
    error_type: str
    message: str
    is_stuck: bool
    is_mistake: bool
    is_compensated: bool
    is_repeated: bool
    created_at: datetime
    finished_at: datetime
    change_seq: int
    pending_request: str
    state_after_rollback: str

    @property
    def state(self) -> str:
        return RunState.FAILED


def failed_runs(within: RunQuerySet | None = None, *, with_repeated: bool = False) -> list[FailedRun]:
    """Return the newest failed runs, at most `NEWEST`; one statement.

    `with_repeated`: look for runs that repeat them.
    """
    repeats = Run.objects.using(read_alias()).filter(replay_of=OuterRef("pk"))
    found = runs_within(within).filter(state=RunState.FAILED.value).newest_first()
    same = ("id", "workflow", "created_at", "finished_at", "change_seq", "pending_request", "state_after_rollback")
    read = {
        "is_repeated": Exists(repeats) if with_repeated else Value(value=False),
        "stored_summary": Substr("summary", 1, KIND_LENGTH),
        "beginning": Substr("error", 1, _BEGINNING),
    }
    rows: QuerySet[Any, dict[str, Any]] = found.annotate(**read).values(*same, "origins", *read)
    return [
        FailedRun(
            location=row["origins"][0] if row["origins"] else "",
            error_type=_read(_TYPE, row["beginning"]),
            message=_message(row["workflow"], row["beginning"]),
            is_stuck=bool(row["state_after_rollback"]) or kind is SummaryKind.HANDLER_FAILED,
            is_mistake=kind is SummaryKind.STOPPED_BY_MISTAKE,
            is_compensated=kind is SummaryKind.COMPENSATED,
            is_repeated=row["is_repeated"],
            **{name: row[name] for name in same},
        )
        for row in rows[:NEWEST]
        for kind in [kind_of_stored(row["stored_summary"])]
    ]


def _message(workflow: str, beginning: str | None) -> str:
    """Return the message, redacted.

    The hook gets the whole message, because a part may lack the text by which the hook decides.
    """
    if conf.REDACT and beginning is not None and _WHOLE_MESSAGE.search(beginning) is None:
        return _TOO_LONG
    return str(redacted(workflow, "error", _read(_MESSAGE, beginning)))


def _read(pattern: re.Pattern[str], beginning: object) -> str:
    """Return one text field of an error's column, or ""."""
    match = pattern.search(beginning) if isinstance(beginning, str) else None
    return "" if match is None else printable(json.loads(f'"{match.group(1)}"'))


_MOST: Final = 10_000  # failed runs whose causes are counted
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseOfBulk:
    """A cause, and the number of selected runs that are failed because of it.

    The last item may stand for the rest: then `fingerprint` is "", and `place` says so.
    """

    fingerprint: str
    place: str
    error_type: str
    number: int


@runtime_checkable
class WithFailures(Protocol):
    """A selection that can return its failed runs."""

    def failed(self) -> Sequence[tuple[QuerySet[Any], bool]]:
        """Return the selected runs that are failed, as disjoint querysets, or their failures instead.

        Each comes with a flag: it is a window, and more runs may follow.
        """


def causes_among(selection: Any, states: frozenset[str]) -> list[CauseOfBulk]:
    """Return the causes of the selected runs that are in `states`, failed or with a held step, the most frequent first.

    Counts up to `_MOST` runs. One statement for each index that the selection follows, and one for the causes.
    """
    has_failed, has_held = RunState.FAILED in states, HELD in states
    if not (has_failed or has_held) or not isinstance(selection, WithFailures):
        return []
    numbers: Counter[int] = Counter()
    found = [rows for rows, _ in selection.failed()]
    if not (has_failed and has_held):
        found = [
            rows.filter(**{"is_held" if rows.model is Failure else "failure__is_held": has_held}) for rows in found
        ]
    for of_cause in tally([rows for rows in found if rows.model is Failure], "cause_id", _MOST):
        numbers.update(of_cause)
    for runs in (rows for rows in found if rows.model is Run):
        failures = Failure.objects.using(read_alias()).filter(is_open=True, run__in=runs.values("pk")[:_MOST])
        numbers.update(dict(failures.order_by().values_list("cause").annotate(models_Count("pk"))))
    named = numbers.most_common(_NAMED)
    causes = Cause.objects.using(read_alias()).in_bulk([key for key, _ in named])
    rows = [
        CauseOfBulk(
            fingerprint=causes[key].fingerprint,
            place=causes[key].place,
            error_type=causes[key].error_type,
            number=number,
        )
        for key, number in named
        if key in causes
    ]
    rest = len(numbers) - len(named)
    if rest:
        others = numbers.total() - sum(number for _, number in named)
        rows.append(
            CauseOfBulk(
                fingerprint="",
                place=ngettext("%(number)d other cause", "%(number)d other causes", rest) % {"number": rest},
                error_type="",
                number=others,
            )
        )
    return rows


_MOST_SHOWN: Final = 3
_EXAMINED: Final = 1_000  # failed runs of each index that a selection follows


@dataclass(frozen=True, slots=True)
class Repeated:
    """How many runs of a selection other runs have repeated; with `is_partial`, at least that many."""

    number: int
    is_partial: bool

    @property
    def note(self) -> str:
        if self.is_partial:
            text = ngettext(
                "At least %(number)s of them was repeated by another run already: what is left of it would be done a second time.",
                "At least %(number)s of them were repeated by other runs already: what is left of them would be done a second time.",
                self.number,
            )
        else:
            text = ngettext(
                "%(number)s of them was repeated by another run already: what is left of it would be done a second time.",
                "%(number)s of them were repeated by other runs already: what is left of them would be done a second time.",
                self.number,
            )
        return text % {"number": thousands(self.number)}


def runs_that_repeat(run: Run, within: RunQuerySet | None) -> Sequence[Run]:
    """Return the newest runs that repeat a failed run. One statement; none for a run that has not failed."""
    if run.state != RunState.FAILED:
        return []
    runs = runs_within(within)
    found = runs.filter(replay_of=run).only("id", "workflow", "state", "summary", "created_at").order_by()
    return sorted(found[: _MOST_SHOWN * 10], key=lambda each: (each.created_at, each.id), reverse=True)[:_MOST_SHOWN]


def count_repeated(selection: Any, states: frozenset[str], within: RunQuerySet | None) -> Repeated | None:
    """Count the failed runs of a selection that other runs have repeated; None for none, or if `states` lack failed.

    Looks at the first 1,000 failed runs along each index that the selection follows: one statement for each.
    """
    if RunState.FAILED not in states or not isinstance(selection, WithFailures):
        return None
    number, is_partial = 0, False
    for rows, is_window in selection.failed():
        ids = list(_ids(rows)[: _EXAMINED + 1])
        runs = runs_within(within)
        repeats = runs.filter(replay_of__in=ids[:_EXAMINED]).order_by()
        number += repeats.values("replay_of").distinct().count() if ids else 0
        is_partial |= is_window or len(ids) > _EXAMINED
    return Repeated(number, is_partial) if number else None


def _ids(rows: QuerySet[Any]) -> QuerySet[Any]:
    if not rows.query.order_by:  # the order of the model would read all of them
        rows = rows.order_by()
    return rows.values_list("run_id" if rows.model is Failure else "pk", flat=True)
