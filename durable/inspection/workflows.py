"""Workflows in numbers: how many runs ended in a day, how long they took, where the open ones stand, why they fail.

A constant number of statements, each along an index and with a cap: the cost depends on no table's size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.conf import conf
from durable.core import registry
from durable.core.bulk_runs import BULK
from durable.core.causes import numberless, place_of
from durable.core.records import ENDED, Hold, RunState
from durable.core.summary import Summary, SummaryKind
from durable.inspection.capped_counts import Count, added, count_capped, moment_of, newest_rows
from durable.inspection.holds import held_workflows
from durable.inspection.step_durations import FOLDED_FROM, StepDurations, workflow_durations
from durable.inspection.throughput import ended_in_last_day
from durable.inspection.wording import display_place
from durable.inspection.workers import Workers
from durable.inspection.workflow_names import each_once
from durable.models import Cause, Failure, Run
from durable.models.rows import load_summary, unpack
from durable.models.run import RunQuerySet

CAP: Final = 1_000  # runs that each count reads
MOST: Final = 100  # workflows of the list
SAMPLE: Final = 200  # completed runs from which durations are taken, and failed ones from which causes are
OPEN: Final = 1_000  # of the newest runs, among which open ones are looked for
CAUSES: Final = 5
PLACES: Final = 12
_MOST_DOING: Final = 3  # places at which one run stands that are named
#: Why a run that waits for nothing by itself is asleep.
_SLEEPING: Final = {
    SummaryKind.DIVERGED: gettext_lazy("code does not fit"),
    SummaryKind.MISTAKE: gettext_lazy("a mistake in the code"),
    SummaryKind.UNKNOWN_WORKFLOW: gettext_lazy("a workflow that no worker knows"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow in the list, with its numbers under all its names. `failed` runs are failed now.

    `completed` and `failed_today` are the ends of the last day, as the charts count them: a run that failed, was
    recovered and completed is in both. They are whole numbers, counted by the sweep.
    """

    name: str
    is_known: bool
    completed: int
    failed_today: int
    failed: Count
    hold: Hold | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlace:
    """Where open runs stand, in words, and how many of the newest runs stand there. `state` is their state."""

    state: str
    place: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStats:
    """The numbers of one workflow. Seconds; None without a completed run.

    `p50` and `p95` are of the `sampled` runs that completed last. `places` are of the open ones among the newest
    `OPEN` runs; `is_windowed` says that there are more runs than these. `flakiest` and `slowest` are places of `steps`,
    "" if none stands out.
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
    """Return the workflows that this process knows and those that are held, and whether there are more.

    They are sorted by name, begin behind the name `after`, and are at most `MOST`. One that a migration has renamed is
    there once. Four statements.
    """
    known = {each.name for each in registry.all()} - {BULK}
    held = held_workflows()
    remaining = [each for each in each_once(known | held.keys()) if each.name > after]
    shown = remaining[:MOST]
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
    """Return the numbers of the workflow that has these names; five statements.

    `within` limits the runs, for example to those a user sees.
    """
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


def workflow_causes(names: Sequence[str], within: RunQuerySet | None = None) -> list[tuple[Cause, int]]:
    """Return the causes of the newest `SAMPLE` failed runs of the workflow that has these names; three statements.

    The commonest first, with their numbers. `within` limits the runs, for example to those a user sees.
    """
    failed = newest_rows(_newest_ended(_runs(names, within), RunState.FAILED), ["finished_at", "id"], SAMPLE)
    of_runs = Failure.objects.using(conf.DATABASE).filter(run__in=[unpack(each) for _, each in failed], is_open=True)
    counted = Counter(of_runs.values_list("cause_id", flat=True)).most_common(CAUSES)
    causes = Cause.objects.using(conf.DATABASE).in_bulk([key for key, _ in counted])
    return [(causes[key], number) for key, number in counted if key in causes]


def builds_in_flight(workers: Workers, queue: str) -> list[tuple[str, int]]:
    """Return the builds of the workers that serve the queue, the commonest first, with the numbers of workers."""
    serving = (each for each in workers.workers if each.slots is not None and each.serves(queue))
    return Counter(each.build for each in serving if each.build).most_common()


def _runs(names: Iterable[str], within: RunQuerySet | None = None) -> list[RunQuerySet]:
    """Return the runs of each name: an index has them in their order for one name at a time."""
    return [(Run.objects.using(conf.DATABASE) if within is None else within).filter(workflow=each) for each in names]


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
    """Return the numbers by state and place, those of many numbered places together."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for state, place in counted:
        alike[state, numberless(place)].append(place)
    found: Counter[tuple[str, str]] = Counter()
    for (state, folded), places in alike.items():
        for place in places:
            found[state, folded if len(places) >= FOLDED_FROM else place] += counted[state, place]
    return found


def _place(state: str, stored: str) -> str:
    """Return where the run stands, in words without times and errors; "" if the state says all."""
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
    """Return the place of the step that fails or is tried again most; "" if all succeed at once."""
    rated = [(_troubles(each), each.place) for each in steps if _troubles(each) > 0]
    return max(rated, default=(0.0, ""))[1]


def _troubles(step: StepDurations) -> float:
    """Return how many attempts are lost for each execution."""
    lost = ((step.attempts or 1.0) - 1.0) * (step.sampled - step.failed) + step.failed
    return lost / step.sampled if step.sampled else 0.0


def _slowest(steps: Sequence[StepDurations]) -> str:
    """Return the place of the step whose p95 is the longest; "" for fewer than two steps."""
    timed = [each for each in steps if each.p95 is not None]
    return max(timed, key=lambda each: each.p95 or 0.0).place if len(timed) > 1 else ""
