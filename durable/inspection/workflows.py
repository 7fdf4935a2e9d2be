"""Workflows in numbers: how many runs ended in a day, how long they took, where the open ones stand, why they fail.

A constant number of statements, each along an index and with a cap: the cost depends on no table's size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from durable.conf import conf
from durable.core import registry
from durable.core.bulk_runs import BULK
from durable.core.records import ENDED, Hold, RunState
from durable.core.summary import Summary, SummaryKind
from durable.inspection.capped_counts import Count, count_capped, moment_of, sample_rows
from durable.inspection.holds import held_workflows
from durable.inspection.step_durations import StepDurations, workflow_durations
from durable.inspection.throughput import ended_in_last_day
from durable.inspection.wording import display_location
from durable.inspection.workers import Workers
from durable.models import Cause, Failure, Run
from durable.models.fields import load_summary
from durable.models.run import RunQuerySet

__all__ = [
    "CAP",
    "MOST",
    "OPEN",
    "SAMPLE",
    "OpenPlace",
    "WorkflowStats",
    "WorkflowSummary",
    "builds_in_flight",
    "list_workflows",
    "workflow_causes",
    "workflow_stats",
]

CAP: Final = 1_000  # runs that each count reads
MOST: Final = 100  # workflows of the list
SAMPLE: Final = 200  # completed runs from which durations are taken, and failed ones from which causes are
OPEN: Final = 1_000  # of the newest runs, among which open ones are looked for
CAUSES: Final = 5
PLACES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow in the list. `failed` runs are failed now.

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

    They are sorted by name, begin behind the name `after`, and are at most `MOST`. Three statements.
    """
    known = {each.name for each in registry.all()} - {BULK}
    held = held_workflows()
    remaining = sorted(each for each in known | held.keys() if each > after)
    names = remaining[:MOST]
    if not names:
        return [], False
    ended = ended_in_last_day(now, names)
    counts = count_capped([_ended(_runs(name), RunState.FAILED) for name in names], CAP)
    summaries = [
        WorkflowSummary(
            name=name,
            is_known=name in known,
            completed=ended[name].completed,
            failed_today=ended[name].failed,
            failed=count,
            hold=held.get(name),
        )
        for name, count in zip(names, counts, strict=True)
    ]
    return summaries, len(remaining) > len(names)


def workflow_stats(name: str, within: RunQuerySet | None = None) -> WorkflowStats:
    """Return the numbers of the workflow; five statements. `within` limits the runs, for example to those a user sees."""
    runs = _runs(name, within)
    steps = workflow_durations(name, within)
    p50, p95, sampled = _durations(runs)
    places, is_windowed = _places(runs)
    [failed] = count_capped([_ended(runs, RunState.FAILED)], CAP)
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


def workflow_causes(name: str) -> list[tuple[Cause, int]]:
    """Return the causes of the newest `SAMPLE` failed runs, the commonest first, with their numbers; three statements."""
    newest = _ended(_runs(name), RunState.FAILED).order_by("-finished_at", "-id")
    failed = newest.values_list("id", flat=True)[:SAMPLE]
    of_runs = Failure.objects.using(conf.DATABASE).filter(run__in=list(failed), is_open=True)
    counted = Counter(of_runs.values_list("cause_id", flat=True)).most_common(CAUSES)
    causes = Cause.objects.using(conf.DATABASE).in_bulk([key for key, _ in counted])
    return [(causes[key], number) for key, number in counted if key in causes]


def builds_in_flight(workers: Workers, queue: str) -> list[tuple[str, int]]:
    """Return the builds of the workers that serve the queue, the commonest first, with the numbers of workers."""
    serving = (each for each in workers.workers if each.slots is not None and each.serves(queue))
    return Counter(each.build for each in serving if each.build).most_common()


def _runs(name: str, within: RunQuerySet | None = None) -> RunQuerySet:
    return (Run.objects.using(conf.DATABASE) if within is None else within).filter(workflow=name)


def _ended(runs: RunQuerySet, state: RunState) -> QuerySet[Any]:
    return runs.ended_in(state.value).order_by("finished_at", "id")


def _durations(runs: RunQuerySet) -> tuple[float | None, float | None, int]:
    completed = _ended(runs, RunState.COMPLETED).order_by("-finished_at", "-id")
    [rows] = sample_rows([completed], ["created_at", "finished_at"], SAMPLE)
    took = sorted((moment_of(end) - moment_of(begin)).total_seconds() for begin, end in rows)
    if not took:
        return None, None, 0
    return took[len(took) // 2], took[len(took) * 95 // 100], len(took)


def _places(runs: RunQuerySet) -> tuple[list[OpenPlace], bool]:
    [rows] = sample_rows([runs.order_by("-created_at", "-id")], ["state", "summary"], OPEN)
    counted = Counter((state, _place(state, summary)) for state, summary in rows if state not in ENDED)
    found = [
        OpenPlace(state=state, place=place, count=number) for (state, place), number in counted.most_common(PLACES)
    ]
    return found, len(rows) >= OPEN


def _place(state: str, stored: str) -> str:
    """Return where the run stands, in words without times and errors; "" if the state says all."""
    summary = Summary.load(load_summary(stored))
    if summary.kind is SummaryKind.WAITING:
        doing = [display_location(str(each["location"])) for each in summary.facts["doing"] if each.get("location")]
        queues = summary.facts["queues"]
        waits = [] if queues is None else [f"a message in {', '.join(queues) or 'any queue'}"]
        return "; ".join([*doing[:3], *waits])
    if summary.kind is SummaryKind.HELD:
        return "held at its start"
    return "" if state != RunState.SLEEPING else summary.kind.value.replace("_", " ")


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
