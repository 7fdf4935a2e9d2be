"""The usual durations of steps: for a step that runs now, and for all steps of a workflow.

Computed from a bounded sample of the workflow's runs, by look-ups only. Two statements, whatever the tables hold. A
duration is that of the attempt that succeeded: not the attempts before it, nor the time between them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from django.db.models import F, QuerySet, Value

from durable.conf import conf
from durable.core.causes import numberless, place_of
from durable.core.records import EntryKind, EntryStatus, RunState
from durable.core.renames import names_of_workflow
from durable.inspection.capped_counts import moment_of, sample_rows
from durable.models import Attempt, Entry, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

#: Runs that are sampled of each kind: the newest that have completed, that have failed, and that were created.
RUNS: Final = 10
ENTRIES: Final = 300  # entries of a run from which the steps of a workflow are taken
NEIGHBOURS: Final = 10  # iterations of a loop, the first ones and those before the given one
MOST: Final = 20  # places whose usual durations are computed at once
FOLDED_FROM: Final = 5  # places that differ in numbers alone, as in the timeline

_ITERATION: Final = re.compile(r"(?<=/)~(\d+)(?=/|$)")
_COLUMNS: Final = ("location", "kind", "status", "attempts", "began", "ended")

#: A step: the workflow and the id of its run, and its location.
SampledStep = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDurations:
    """The usual durations of a step. Seconds; None without a success among the sampled executions.

    `place` is its location with "~" in place of an iteration's number, and with "#" for the numbers of steps and
    branches that were folded into one. Of the `sampled` executions that have ended,
    `failed` have failed for good; the others have succeeded, with `attempts` attempts on average. `workflow_durations`
    counts those as well that a recovery has let begin anew, as long as their attempts are stored: they are deleted with
    the step's entry.
    """

    place: str
    location: str
    sampled: int
    failed: int
    p50: float | None
    p95: float | None
    attempts: float | None


def workflow_durations(workflow: str, within: RunQuerySet | None = None) -> list[StepDurations]:
    """Return the durations of the workflow's steps, the slowest p95 first; two statements.

    `within` limits the runs, for example to those that a user may see. Runs of each name of the workflow that this
    process knows are sampled. A step whose location comes after the first `ENTRIES` of each sampled run is missing.
    From `FOLDED_FROM` on, places that differ in the numbers of their names alone are one.
    """
    [runs] = _sampled_runs([workflow], within)
    entries = [_entries().filter(run_id=each).order_by("location") for each in runs]
    attempts = [_failed_attempts().filter(run_id=each).order_by("location", "id") for each in runs]
    found_rows = sample_rows([*entries, *attempts], _COLUMNS, ENTRIES)
    by_place: dict[str, list[_Execution]] = defaultdict(list)
    for rows, failed in zip(found_rows[: len(runs)], found_rows[len(runs) :], strict=True):
        for each in [*_executions(rows), *_begun_anew(rows, failed)]:
            by_place[place_of(each.location)].append(each)
    found = [_measured(place, rows) for place, rows in _folded(by_place).items()]
    return sorted(found, key=lambda each: (-(each.p95 or 0.0), each.place))


def usual_durations(
    steps: Iterable[SampledStep], within: RunQuerySet | None = None
) -> dict[SampledStep, StepDurations]:
    """Return the usual durations of these steps; two statements.

    At most `MOST` places are looked up: a workflow and a location without its iterations' numbers. Steps of other
    places, and those of which nothing is known, are missing. `within` limits the runs beside their own.
    """
    wanted: dict[tuple[str, str], list[SampledStep]] = defaultdict(list)
    for step in steps:
        wanted[step[0], place_of(step[2])].append(step)
    looked_up = list(wanted.items())[:MOST]
    if not looked_up:
        return {}
    workflows = sorted({workflow for (workflow, _), _ in looked_up})
    runs = dict(zip(workflows, _sampled_runs(workflows, within), strict=True))
    entries = [_neighbours(runs[workflow], alike[0]) for (workflow, _), alike in looked_up]
    found: dict[SampledStep, StepDurations] = {}
    for ((_, place), alike), rows in zip(looked_up, sample_rows(entries, _COLUMNS, ENTRIES), strict=True):
        if executions := _executions(rows):
            found |= dict.fromkeys(alike, _measured(place, executions))
    return found


def _sampled_runs(workflows: Sequence[str], within: RunQuerySet | None = None) -> list[list[str]]:
    """Return the ids of runs of each workflow, at most three times `RUNS` for each of its names; one statement."""
    newest: list[QuerySet[Any]] = []
    of_workflow: list[int] = []  # its position in `workflows`, for each of the querysets
    for position, workflow in enumerate(workflows):
        for name in names_of_workflow(workflow):
            runs = (Run.objects.using(conf.DATABASE) if within is None else within).filter(workflow=name)
            ended = runs.filter(finished_at__isnull=False).order_by("-finished_at", "-id")
            newest += [
                ended.filter(state=RunState.COMPLETED.value),
                ended.filter(state=RunState.FAILED.value),
                runs.order_by("-created_at", "-id"),
            ]
            of_workflow += [position] * 3
    found: list[dict[str, None]] = [{} for _ in workflows]
    for position, rows in zip(of_workflow, sample_rows(newest, ["id"], RUNS), strict=True):
        found[position].update(dict.fromkeys(unpack(run_id) for (run_id,) in rows))
    return [list(each) for each in found]


def _neighbours(runs: Collection[str], step: SampledStep) -> QuerySet[Any]:
    """Return executions of the step in these runs and its own."""
    _, own_run, location = step
    return _entries().filter(run__in=[own_run, *runs], location__in=_iterations(location)).order_by()


def _iterations(location: str) -> list[str]:
    """Return the locations of the same step in other iterations of the innermost loop; its own outside loops."""
    *_, innermost = (None, *_ITERATION.finditer(location))
    if innermost is None:
        return [location]
    number = int(innermost[1])
    begin, end = innermost.span(1)
    numbers = {*range(NEIGHBOURS), *range(max(0, number - NEIGHBOURS), number + 1)}
    return [f"{location[:begin]}{each}{location[end:]}" for each in sorted(numbers)]


def _entries() -> QuerySet[Any]:
    return (
        Entry.objects.using(conf.DATABASE)
        .with_metadata()
        .annotate(
            status=F("metadata__status"),
            attempts=F("metadata__attempts"),
            began=F("metadata__last_attempt_at"),
            ended=F("metadata__completed_at"),
        )
    )


def _failed_attempts() -> QuerySet[Any]:
    """Return the failed attempts of steps, in the columns of their entries."""
    return Attempt.objects.using(conf.DATABASE).annotate(
        kind=Value(""), status=Value(""), attempts=F("number"), began=F("started_at"), ended=F("finished_at")
    )


def _folded(by_place: Mapping[str, list[_Execution]]) -> dict[str, list[_Execution]]:
    """Return the executions by place, those of many numbered places together."""
    alike: dict[str, list[str]] = defaultdict(list)
    for place in by_place:
        alike[numberless(place)].append(place)
    found: dict[str, list[_Execution]] = {}
    for folded, places in alike.items():
        if len(places) < FOLDED_FROM:
            found |= {place: by_place[place] for place in places}
        else:
            found[folded] = [each for place in places for each in by_place[place]]
    return found


@dataclass(frozen=True, slots=True)
class _Execution:
    """An execution of a step that has ended. `took` is None if it has failed."""

    location: str
    attempts: int
    took: float | None


def _executions(rows: Iterable[tuple[Any, ...]]) -> list[_Execution]:
    found = []
    for location, kind, status, attempts, began, ended in rows:
        if kind != EntryKind.STEP:
            continue
        if status == EntryStatus.EXHAUSTED:
            found.append(_Execution(unpack(location), attempts, None))
        elif status == EntryStatus.COMPLETED and began is not None and ended is not None:
            seconds = (moment_of(ended) - moment_of(began)).total_seconds()
            found.append(_Execution(unpack(location), attempts, max(0.0, seconds)))
    return found


def _begun_anew(entries: Iterable[tuple[Any, ...]], failed: Iterable[tuple[Any, ...]]) -> Iterator[_Execution]:
    """Yield the executions of these entries that failed for good and were followed by another one, by their attempts.

    The numbers of attempts begin anew with a recovery.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for location, _kind, _status, number, _began, _ended in failed:
        numbers[unpack(location)].append(number)
    for stored, kind, status, attempts, _began, _ended in entries:
        location = unpack(stored)
        if kind != EntryKind.STEP or location not in numbers:
            continue
        # Of an open step the newest attempt has failed, and the next one follows it.
        next_one = {EntryStatus.EXHAUSTED: [], EntryStatus.COMPLETED: [attempts]}.get(status, [attempts + 1])
        for number, next_number in pairwise([*numbers[location], *next_one]):
            if next_number <= number:
                yield _Execution(location, number, None)


def _measured(place: str, executions: Sequence[_Execution]) -> StepDurations:
    took = sorted(each.took for each in executions if each.took is not None)
    attempts = [each.attempts for each in executions if each.took is not None]
    return StepDurations(
        place=place,
        location=executions[0].location,
        sampled=len(executions),
        failed=len(executions) - len(took),
        p50=took[len(took) // 2] if took else None,
        p95=took[len(took) * 95 // 100] if took else None,
        attempts=sum(attempts) / len(attempts) if attempts else None,
    )
