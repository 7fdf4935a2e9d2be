"""Statistics of workflows, under all their names, and names for suggestions.

A constant number of statements, each along an index and with a cap: the cost does not depend on the tables' sizes.

Names of workflows are read along their index, one look-up for each name. No index begins with the queues of all runs,
so the names of queues come from the index of due runs, the newest `NEWEST` runs, the settings and the code.

Charts are read from the rows that the sweep writes (`durable.rollups`), so every run is counted, and the cost depends
only on the number of bars. The figures end at `Throughput.until`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, TypeVar

from django.db.models import Q, QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.core import registry
from durable.core.causes import numberless, place_of
from durable.core.names.renames import names_of_workflow
from durable.core.records import ENDED, Hold, RunState
from durable.core.registry import BULK, WorkflowDefinition
from durable.core.summary import Summary, SummaryKind
from durable.inspection.activities import FOLDED_FROM, StepDurations, workflow_durations
from durable.inspection.bulks import bulks_among
from durable.inspection.counting import (
    Count,
    added,
    count_capped,
    moment_of,
    newest_rows,
    queues_of_due_runs,
    sample_rows,
    workflows_of_runs,
)
from durable.inspection.pagination import Cursor, RunOrder, are_few, has_own_index
from durable.inspection.queues import held_workflows
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import runs_within
from durable.inspection.wording import display_place, verb_in_words
from durable.inspection.workers import Workers, builds
from durable.models import Cause, Child, Failure, OperatorAction, Rollup, RollupProgress, Run, WorkerProcess
from durable.models.renames import learn_names
from durable.models.rows import load_summary, unpack
from durable.models.run import RunQuerySet
from durable.notifier import redis_clients
from durable.rollups import HALF_HOUR, MINUTE, percentile

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkflow:
    """A workflow with all its names, the oldest first. `definition` is its code, None if this process has none."""

    names: tuple[str, ...]
    definition: WorkflowDefinition | None

    @property
    def name(self) -> str:
        """The name to show: that of the code, or else the newest."""
        return self.names[-1] if self.definition is None else self.definition.name

    @property
    def other_names(self) -> tuple[str, ...]:
        return tuple(each for each in self.names if each != self.name)

    def among(self, found: Mapping[str, T]) -> T | None:
        """Return the mapping's value for the first of the names that it has, the shown name first; None if it has
        none.
        """
        return next((found[each] for each in (self.name, *self.names) if each in found), None)


def workflow_of(name: str) -> NamedWorkflow:
    """Return the workflow with this name, whether or not code or a run has it; one statement."""
    learn_names(read_alias())
    return _known(name)


def each_once(names: Iterable[str]) -> list[NamedWorkflow]:
    """Return the workflows with these names, each once, sorted by shown name; one statement."""
    learn_names(read_alias())
    found = {each.name: each for each in map(_known, names)}
    return [found[name] for name in sorted(found)]


def _known(name: str) -> NamedWorkflow:
    names = names_of_workflow(name)
    in_code = next((each for each in reversed(names) if each in registry.registry), None)
    return NamedWorkflow(names=names, definition=None if in_code is None else registry.get(in_code))


KINDS: Final = ("workflow", "queue", "worker")
MOST: Final = 20  # names of a page
LOOKS: Final = 500  # names to examine for a page
NEWEST: Final = 1_000  # runs to read queues from


@dataclass(frozen=True, slots=True, kw_only=True)
class NameList:
    """Some names in their order. More may follow after `next`; None if there are no more."""

    names: Sequence[str]
    next: str | None = None


def find_names(kind: str, text: str = "", after: str = "") -> NameList:
    """Return up to `MOST` names of this kind (one of `KINDS`) that contain `text`, ignoring case.

    The list begins after the name `after`. At most `LOOKS` names are examined, so the list may be short or empty
    although more names follow at `next`. At most two statements. Raises KeyError for an unknown kind.
    """
    scanned = _SCANS[kind](after, LOOKS)
    others = (name for name in _others(kind) if name > after)
    names = sorted({*scanned, *others})
    bound = scanned[-1] if len(scanned) == LOOKS else None
    if bound is not None:
        names = [name for name in names if name <= bound]
    matching = [name for name in names if text.casefold() in name.casefold()]
    if len(matching) > MOST:
        return NameList(names=matching[:MOST], next=matching[MOST - 1])
    return NameList(names=matching, next=bound)


def _others(kind: str) -> Iterable[str]:
    """Return names that the rows may lack, or that no index has."""
    if kind == "worker":
        return []
    workflows = registry.all()
    if kind == "workflow":
        return [each.name for each in workflows]
    newest = Run.objects.using(read_alias()).newest_first().values_list("queue", flat=True)[:NEWEST]
    return {*redis_clients.queue_names(), *(each.queue for each in workflows), *newest}


def _workers(after: str, most: int) -> list[str]:
    workers = WorkerProcess.objects.using(read_alias()).filter(name__gt=after).order_by("name")
    return list(workers.values_list("name", flat=True)[:most])


_SCANS: Final = {"workflow": workflows_of_runs, "queue": queues_of_due_runs, "worker": _workers}


_ENDS: Final = ("completed", "failed", "cancelled")  # columns
MOST_ANNOTATIONS: Final = 20  # of each kind
_ACTIONS: Final = 200  # rows of the audit log to search for bulks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a chart: the runs that ended within the chart's width from `begins` on.

    `median` and `slow` (the 95th percentile) are the seconds from creation to end, with an error of at most a tenth;
    None without runs.
    """

    begins: datetime
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    median: float | None = None
    slow: float | None = None

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(Bar):
    """The data of one chart: bars of `width` without a gap. Its own numbers are those of all bars together.

    `until` is the moment up to which ended runs are counted, None if none are yet.
    """

    width: timedelta
    bars: Sequence[Bar]
    until: datetime | None

    @property
    def end(self) -> datetime:
        return self.bars[-1].begins + self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Something that may explain a change: a build that appeared (`kind` "deploy"), or an operator's bulk ("bulk").

    `title` is the build, what the bulk did, or the verb that an operator applied to the bulk. `bulk_id` is the bulk's
    id.
    """

    kind: str
    at: datetime
    title: str
    bulk_id: str = ""


def last_hour_and_day(now: datetime, workflow: str = "") -> tuple[Throughput, Throughput]:
    """Return the charts of the last hour, in bars of two minutes, and of the last day, in bars of half an hour, of all
    workflows or of one; two statements.
    """
    hour, day = _measured([_span(now, MINUTE, timedelta(minutes=2), 30), _day(now)], workflow)
    return hour, day


def ended_in_last_day(now: datetime, workflows: Sequence[str]) -> dict[str, Bar]:
    """Count the runs of each workflow that ended in the day of `last_hour_and_day`; one statement."""
    day = _day(now)
    kept = Rollup.objects.using(read_alias()).filter(
        workflow__in=workflows, width=int(day.kept.total_seconds()), begins__gte=day.begin, begins__lt=day.end
    )
    sums = kept.order_by().values_list("workflow").annotate(*(Sum(state) for state in _ENDS))
    found = {workflow: dict(zip(_ENDS, numbers, strict=True)) for workflow, *numbers in sums}
    return {name: Bar(begins=day.begin, **found.get(name, {})) for name in workflows}


def annotations_of(throughput: Throughput) -> list[Annotation]:
    """Return the deploys and the bulks of the chart's time, in their order; at most three statements."""
    found = [
        Annotation(kind="deploy", at=each.first_seen_at, title=each.name)
        for each in builds(throughput.begins, throughput.end, most=MOST_ANNOTATIONS)
    ]
    actions = OperatorAction.objects.using(read_alias()).filter(
        bulk_id="", created_at__gte=throughput.begins, created_at__lt=throughput.end
    )
    rows = list(
        actions.order_by("-created_at", "-id").values_list("run_id", "created_at", "action", "detail")[:_ACTIONS]
    )
    bulks = bulks_among({run_id for run_id, *_ in rows if run_id})
    found += [
        Annotation(
            kind="bulk", at=at, title=detail.removesuffix(", by this run") or verb_in_words(verb), bulk_id=run_id
        )
        for run_id, at, verb, detail in rows
        if run_id in bulks
    ][:MOST_ANNOTATIONS]
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
            **asdict(self.every.bar(self.begin)),
        )


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
    for row in Rollup.objects.using(read_alias()).filter(reduce(or_, conditions), workflow__in=names):
        by_width[row.width].add(row)
    until = RollupProgress.objects.using(read_alias()).values_list("until", flat=True).first()
    return [span.throughput(until) for span in spans]


CAP: Final = 1_000  # runs to read for each count
MOST_WORKFLOWS: Final = 100  # workflows of the list
SAMPLE: Final = 200  # completed runs to read durations from, and failed ones to read causes from
OPEN: Final = 1_000  # of the newest runs, to search for open ones
CAUSES: Final = 5
PLACES: Final = 12
_MOST_DOING: Final = 3  # places of one run to name
#: Kinds of summaries whose place is not named.
_SLEEPING: Final = {
    SummaryKind.DIVERGED: gettext_lazy("code does not fit"),
    SummaryKind.MISTAKE: gettext_lazy("a mistake in the code"),
    SummaryKind.UNKNOWN_WORKFLOW: gettext_lazy("a workflow that its worker does not know"),
    SummaryKind.END_REFUSED: gettext_lazy("an on_end that fails"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow in the list, with its numbers under all its names. `failed` runs are failed now.

    `completed` and `failed_today` count ends in the last day, as the charts do: a run that failed, was recovered and
    completed counts in both. The sweep counts them exactly.
    """

    name: str
    is_known: bool
    completed: int
    failed_today: int
    failed: Count
    hold: Hold | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlace:
    """A place where open runs are, in words, and how many of the newest runs are there. `state` is their state."""

    state: str
    place: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStats:
    """The numbers of one workflow. Seconds; None without a completed run.

    `p50` and `p95` come from the `sampled` runs that completed last. `places` come from the open ones among the newest
    `OPEN` runs; `is_windowed`: there are more runs than these. `flakiest` and `slowest` are places of `steps`, "" if
    none stands out.
    """

    sampled: int
    p50: float | None
    p95: float | None
    steps: Sequence[StepDurations]
    flakiest: str
    slowest: str
    places: Sequence[OpenPlace]
    is_windowed: bool
    failed: Count


def list_workflows(now: datetime, after: str = "") -> tuple[list[WorkflowSummary], bool]:
    """Return the workflows that this process knows or that are held, and whether there are more.

    At most `MOST`, sorted by name, from after the name `after`. A renamed workflow is listed once. Four statements.
    """
    known = {each.name for each in registry.all()} - {BULK}
    held = held_workflows()
    remaining = [each for each in each_once(known | held.keys()) if each.name > after]
    shown = remaining[:MOST_WORKFLOWS]
    if not shown:
        return [], False
    names = [name for each in shown for name in each.names]
    ended = ended_in_last_day(now, names)
    counts = count_capped([_ended(runs, RunState.FAILED) for runs in _runs(names)], CAP)
    failed = dict(zip(names, counts, strict=True))
    summaries = [
        WorkflowSummary(
            name=each.name,
            is_known=each.definition is not None,
            completed=sum(ended[name].completed for name in each.names),
            failed_today=sum(ended[name].failed for name in each.names),
            failed=added((failed[name] for name in each.names), CAP),
            hold=each.among(held),
        )
        for each in shown
    ]
    return summaries, len(remaining) > len(shown)


def workflow_stats(names: Sequence[str], within: RunQuerySet | None = None) -> WorkflowStats:
    """Return the numbers of the workflow that has these names; five statements."""
    runs = _runs(names, within)
    steps = workflow_durations(names[-1], within)
    p50, p95, sampled = _durations(runs)
    places, is_windowed = _places(runs)
    failed = added(count_capped([_ended(each, RunState.FAILED) for each in runs], CAP), CAP)
    return WorkflowStats(
        sampled=sampled,
        p50=p50,
        p95=p95,
        steps=steps,
        flakiest=_flakiest(steps),
        slowest=_slowest(steps),
        places=places,
        is_windowed=is_windowed,
        failed=failed,
    )


def workflow_causes(names: Sequence[str], within: RunQuerySet | None) -> list[tuple[Cause, int]]:
    """Return the causes of the newest `SAMPLE` failed runs of the workflow with these names; three statements.

    The commonest first, with their numbers.
    """
    failed = newest_rows(_newest_ended(_runs(names, within), RunState.FAILED), ["finished_at", "id"], SAMPLE)
    of_runs = Failure.objects.using(read_alias()).filter(run__in=[unpack(each) for _, each in failed], is_open=True)
    counted = Counter(of_runs.values_list("cause_id", flat=True)).most_common(CAUSES)
    causes = Cause.objects.using(read_alias()).in_bulk([key for key, _ in counted])
    return [(causes[key], number) for key, number in counted if key in causes]


def builds_in_flight(workers: Workers, queue: str) -> list[tuple[str, int]]:
    """Return the builds of the workers that serve the queue, the commonest first, with the numbers of workers."""
    serving = (each for each in workers.workers if each.slots is not None and each.serves(queue))
    return Counter(each.build for each in serving if each.build).most_common()


def _runs(names: Iterable[str], within: RunQuerySet | None = None) -> list[RunQuerySet]:
    """Return the runs of each name as a queryset of its own: an index has them in order for one name at a time."""
    return [runs_within(within).filter(workflow=each) for each in names]


def _ended(runs: RunQuerySet, state: RunState) -> QuerySet[Any]:
    return runs.ended_in(state.value).order_by("finished_at", "id")


def _newest_ended(runs: Iterable[RunQuerySet], state: RunState) -> list[QuerySet[Any]]:
    return [_ended(each, state).order_by("-finished_at", "-id") for each in runs]


def _durations(runs: Iterable[RunQuerySet]) -> tuple[float | None, float | None, int]:
    rows = newest_rows(_newest_ended(runs, RunState.COMPLETED), ["finished_at", "created_at"], SAMPLE)
    took = sorted((moment_of(end) - moment_of(begin)).total_seconds() for end, begin in rows)
    if not took:
        return None, None, 0
    return took[len(took) // 2], took[len(took) * 95 // 100], len(took)


def _places(runs: Iterable[RunQuerySet]) -> tuple[list[OpenPlace], bool]:
    newest = [each.order_by("-created_at", "-id") for each in runs]
    rows = newest_rows(newest, ["created_at", "state", "summary"], OPEN)
    counted = _folded(Counter((state, _place(state, summary)) for _, state, summary in rows if state not in ENDED))
    found = [
        OpenPlace(state=state, place=place, count=number) for (state, place), number in counted.most_common(PLACES)
    ]
    return found, len(rows) >= OPEN


def _folded(counted: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return the numbers by state and place; numbered places become one if there are many."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for state, place in counted:
        alike[state, numberless(place)].append(place)
    found: Counter[tuple[str, str]] = Counter()
    for (state, folded), places in alike.items():
        for place in places:
            found[state, folded if len(places) >= FOLDED_FROM else place] += counted[state, place]
    return found


def _place(state: str, stored: str) -> str:
    """Say where the run is, without times and errors; "" if the state says it all."""
    summary = Summary.load(load_summary(stored))
    if summary.kind is SummaryKind.WAITING:
        locations = [str(each["location"]) for each in summary.facts["doing"] if each.get("location")]
        doing = [display_place(place_of(each)) for each in locations[:_MOST_DOING]]
        if (queues := summary.facts["queues"]) is not None:
            named = ", ".join(queues)
            doing.append(_("a message in %(queues)s") % {"queues": named} if named else _("a message in any queue"))
        return "; ".join(doing)
    if summary.kind is SummaryKind.HELD:
        return _("held at its start")
    return str(_SLEEPING.get(summary.kind, "")) if state == RunState.SLEEPING else ""


def _flakiest(steps: Iterable[StepDurations]) -> str:
    """Return the place of the step that most often fails or is retried; "" if all succeed at once."""
    rated = [(_troubles(each), each.place) for each in steps if _troubles(each) > 0]
    return max(rated, default=(0.0, ""))[1]


def _troubles(step: StepDurations) -> float:
    """Return the number of lost attempts for each execution."""
    lost = ((step.attempts or 1.0) - 1.0) * (step.sampled - step.failed) + step.failed
    return lost / step.sampled if step.sampled else 0.0


def _slowest(steps: Sequence[StepDurations]) -> str:
    """Return the place of the step whose p95 is the longest; "" for fewer than two steps."""
    timed = [each for each in steps if each.p95 is not None]
    return max(timed, key=lambda each: each.p95 or 0.0).place if len(timed) > 1 else ""


STATE_CAP = 10_000  # of each state; a higher number would not help an operator
_STATES: Final = [state.value for state in RunState]


def count_by_state(within: RunQuerySet | None = None) -> dict[str, Count]:
    """Return the number of runs in each state, every state included, each counted up to `STATE_CAP`; one statement.

    If no index serves `within`, or these runs are more than `STATE_CAP`, they are counted among the newest `STATE_CAP`
    of each state, with at most two more statements.
    """
    if within is None or (has_own_index(within) and are_few(within, STATE_CAP)):
        return count_everyone(within)[0]
    everyone: RunQuerySet = Run.objects.using(read_alias())
    newest = [everyone.filter(state=each).newest_first() for each in _STATES]
    ends = sample_rows([each[STATE_CAP : STATE_CAP + 1] for each in newest], RunOrder.NEWEST.key, 1)
    last = [Cursor(moment_of(rows[0][0]), unpack(rows[0][1])) if rows else None for rows in ends]
    visible = [within.filter(state=each).newest_first() for each in _STATES]
    among = [
        runs if end is None else runs.filter(end.up_to(RunOrder.NEWEST.key))
        for runs, end in zip(visible, last, strict=True)
    ]
    counts = zip(count_capped(among, STATE_CAP), last, strict=True)
    found = [replace(count, is_capped=count.is_capped or end is not None) for count, end in counts]
    return dict(zip(_STATES, found, strict=True))


def count_everyone(within: RunQuerySet | None = None) -> tuple[dict[str, Count], bool]:
    """Return the counts of `count_by_state`, and whether any run is a child; one statement."""
    runs = runs_within(within)
    of_state = [runs.filter(state=each).newest_first() for each in _STATES]
    *counts, children = count_capped([*of_state, Child.objects.using(read_alias()).order_by("pk")[:1]], STATE_CAP)
    return dict(zip(_STATES, counts, strict=True)), bool(children)
