"""Running steps with their age, their usual durations, and their saved details.

Reads the rows that workers write about steps that have run for a second. Rows of a lost lease are never returned. All
lists are bounded.

Usual durations are computed from a bounded sample of the workflow's runs and for a bounded number of places, with two
statements that only follow indexes. A duration is that of the successful attempt, without earlier attempts and pauses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from django.db.models import Case, F, Q, QuerySet, Value, When
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.causes import numberless, place_of
from durable.core.names.renames import names_of_workflow
from durable.core.places import Place
from durable.core.records import WITH_WORKER, ActivityKind, EntryKind, EntryStatus, RunState
from durable.inspection.counting import moment_of, sample_rows
from durable.inspection.humanize import span
from durable.inspection.pagination import cursor_of, moment_key_of, on_visible
from durable.inspection.payloads import payload, redacted
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import runs_within
from durable.inspection.shown import line_of
from durable.inspection.wording import display_location
from durable.models import Activity, Attempt, Entry, Run, StepSave
from durable.models.rows import SafeTextField, unpack
from durable.models.run import RunQuerySet
from durable.models.workers import LEFT, ActivityQuerySet

#: How many runs are sampled of each kind: the newest completed, the newest failed, and the newest created.
RUNS: Final = 10
ENTRIES: Final = 300  # entries of a run from which the steps of a workflow are taken
NEIGHBOURS: Final = 10  # iterations of a loop, the first ones and those before the given one
MOST: Final = 20  # places whose usual durations are computed in one call
FOLDED_FROM: Final = 5  # places that differ only in numbers, as in the timeline

_ITERATION: Final = re.compile(r"(?<=/)~(\d+)(?=/|$)")
_COLUMNS: Final = ("location", "kind", "status", "attempts", "began", "ended")

#: A step: the workflow and the id of its run, and its location.
SampledStep = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDurations:
    """The usual durations of a step. Seconds; None without a success among the sampled executions.

    `place` is its location with "~" in place of an iteration's number, and with "#" for the numbers of steps and
    branches that were folded into one. Of the `sampled` executions that have ended, `failed` have failed for good; the
    others have succeeded, with `attempts` attempts on average. `workflow_durations` also counts executions that a
    recovery has repeated, as long as their attempts are stored (they are deleted with the step's entry).
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

    Runs of each name of the workflow that this process knows are sampled. A step whose location comes after the first
    `ENTRIES` of each sampled run is missing. `FOLDED_FROM` or more places that differ only in numbers count as one.
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

    At most `MOST` places are looked up: a workflow and a location without its iterations' numbers. Steps at other
    places, and steps without data, are missing. `within` limits the runs other than the steps' own.
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
    for ((_workflow, place), alike), rows in zip(looked_up, sample_rows(entries, _COLUMNS, ENTRIES), strict=True):
        if executions := _executions(rows):
            found |= dict.fromkeys(alike, _measured(place, executions))
    return found


def _sampled_runs(workflows: Sequence[str], within: RunQuerySet | None) -> list[list[str]]:
    """Return the ids of runs of each workflow, at most three times `RUNS` for each of its names; one statement."""
    newest: list[QuerySet[Any]] = []
    of_workflow: list[int] = []  # its position in `workflows`, for each of the querysets
    for position, workflow in enumerate(workflows):
        for name in names_of_workflow(workflow):
            runs = runs_within(within).filter(workflow=name)
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
    """Return executions of the step in its own run and in these runs."""
    _, own_run, location = step
    return _entries().filter(run__in=[own_run, *runs], location__in=_iterations(location)).order_by()


def _iterations(location: str) -> list[str]:
    """Return the locations of the step in other iterations of the innermost loop; outside of loops only its own."""
    *_, innermost = (None, *_ITERATION.finditer(location))
    if innermost is None:
        return [location]
    number = int(innermost[1])
    begin, end = innermost.span(1)
    numbers = {*range(NEIGHBOURS), *range(max(0, number - NEIGHBOURS), number + 1)}
    return [f"{location[:begin]}{each}{location[end:]}" for each in sorted(numbers)]


def _entries() -> QuerySet[Any]:
    return (
        Entry.objects.using(read_alias())
        .with_metadata()
        .annotate(
            status=F("metadata__status"),
            attempts=F("metadata__attempts"),
            began=F("metadata__last_attempt_at"),
            ended=F("metadata__completed_at"),
        )
    )


def _failed_attempts() -> QuerySet[Any]:
    """Return the failed attempts of steps, in the columns of entries."""
    return Attempt.objects.using(read_alias()).annotate(
        kind=Value(""), status=Value(""), attempts=F("number"), began=F("started_at"), ended=F("finished_at")
    )


def _folded(by_place: Mapping[str, list[_Execution]]) -> dict[str, list[_Execution]]:
    """Group the executions by place; numbered places become one if there are many."""
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
    """An ended execution of a step. `took` is None if it failed."""

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
    """Yield the executions that failed for good and were later repeated, from the attempts of these entries.

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


PAGE: Final = 50  # activities
MOST_ACTIVITIES: Final = 200  # the most activities of one run, of the runs of a list, and in a search for hung ones
HUNG_AFTER: Final = 60.0  # seconds after which a step may count as hung
HUNG_FACTOR: Final = 5.0  # times its 95th percentile
_ENOUGH: Final = 3  # successes needed for the percentile to count

#: The key of an activity in the list: the time of its begin, and its number.
ActivityKey = tuple[datetime, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStep:
    """An attempt of a step, or a call of a step's rollback handler, that runs now.

    `seconds` is its age, `timeout` in seconds, 0 for none. `summary` is the line of text that its call has for people.
    `usual` is None if it was not read or is not known. With
    `left` it is instead a task or thread, named by `left`, that an asynchronous step left on its event loop: it
    continues although it was cancelled at `began_at`. Then `attempt` is 0, and `location` is "" if the workflow's own
    code left it.
    """

    key: ActivityKey
    run_id: str
    workflow: str
    queue: str
    location: str
    attempt: int
    kind: str
    worker: str
    began_at: datetime
    seconds: float
    timeout: float
    usual: StepDurations | None
    stack_asked_at: datetime | None
    stack_taken_at: datetime | None
    abandon_asked_at: datetime | None
    left: str = ""
    summary: str = ""

    @property
    def is_rollback(self) -> bool:
        return self.kind == ActivityKind.ROLLBACK

    @property
    def is_hung(self) -> bool:
        """Whether it has run much longer than usual or, if that is not known, for more than half of its timeout.

        No step is hung within its first minute.
        """
        if self.seconds < HUNG_AFTER:
            return False
        if self.left:
            return True
        if (usual := self.usual) is not None and usual.p95 is not None and usual.sampled - usual.failed >= _ENOUGH:
            return self.seconds > HUNG_FACTOR * usual.p95
        return 0 < self.timeout < 2 * self.seconds

    @property
    def overrun(self) -> str:
        """Describe a step that continues after its timeout, or what a step has left running; "" for neither."""
        if not (self.left or 0 < self.timeout < self.seconds):
            return ""
        if self.left:
            told = _("It goes on after it was cancelled, and its run continues without it.")
        else:
            told = _("Its timeout has passed, and it has not let itself be interrupted.")
        if not conf.HARD_TIMEOUT:
            return told
        left = self.timeout + conf.HARD_TIMEOUT - self.seconds
        if left > 0:
            ends = _("In %(span)s its worker's process hands over its other runs and ends.") % {"span": span(left)}
        else:
            ends = _("Its worker's process hands over its other runs and ends now.")
        return f"{told} {ends}"

    @property
    def name(self) -> str:
        """The step for display: 'step "charge"', or 'the rollback handler of "charge"'."""
        name = display_location(self.location)
        if self.left:
            text = _('%(left)s, which step "%(name)s" has left') if name else _("%(left)s, which the workflow has left")
            return text % {"left": self.left, "name": name}
        text = _('the rollback handler of "%(name)s"') if self.is_rollback else _('step "%(name)s"')
        return text % {"name": name}

    @property
    def limits(self) -> str:
        """The limits of its age: "timeout 51 m; usually 2 s"; "" if there are none."""
        known = [_("timeout %(span)s") % {"span": span(self.timeout)}] if self.timeout else []
        if self.usual is not None and self.usual.p50 is not None:
            known.append(_("usually %(span)s") % {"span": span(self.usual.p50)})
        return "; ".join(known)

    @property
    def words(self) -> str:
        """The step, its attempt, its age and its limits: 'step "charge", attempt 2, for 40 m 3 s (timeout 51 m)'."""
        return self._told(units=2)

    @property
    def words_of_minute(self) -> str:
        """The same, with the age only in its largest unit.

        After the first minute, the text changes at most once a minute.
        """
        return self._told(units=1)

    def _told(self, units: int) -> str:
        text = _("%(step)s, attempt %(number)d, for %(span)s") if self.attempt > 1 else _("%(step)s for %(span)s")
        words = text % {"step": self.name, "number": self.attempt, "span": span(self.seconds, units)}
        return f"{words} ({self.limits})" if self.limits else words


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityPage:
    """A page of running steps, the oldest first; `next_cursor` is None at the end."""

    steps: Sequence[RunningStep]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """The stack of a running step, redacted; "" until a worker has answered. Show it to users with `view_payload`."""

    text: str
    asked_at: datetime | None
    taken_at: datetime | None


def activities_of(run: Run, now: datetime, within: RunQuerySet | None = None) -> list[RunningStep]:
    """Return the running steps of the run at `now`, the oldest first.

    One statement, and two for the usual durations if there are any steps; none for a run that no worker has.
    """
    return activities_of_runs([run], now, with_usual=True, within=within)[run.id]


def activities_of_runs(
    runs: Iterable[Run], now: datetime, *, with_usual: bool = False, within: RunQuerySet | None = None
) -> defaultdict[str, list[RunningStep]]:
    """Return the running steps of each of the runs, by id, the oldest first; one statement, two more `with_usual`."""
    found: defaultdict[str, list[RunningStep]] = defaultdict(list)
    held = [run.id for run in runs if run.state in WITH_WORKER and run.lease_expires_at is not None]
    if held:
        for step in _read(
            _current(now).filter(run__in=held)[:MOST_ACTIVITIES], now, with_usual=with_usual, within=within
        ):
            found[step.run_id].append(step)
    return found


def list_activities(
    now: datetime, *, cursor: str | None = None, limit: int = PAGE, within: RunQuerySet | None = None
) -> ActivityPage:
    """Return a page of the steps running at `now`, the oldest first; three statements. Raises InvalidCursorError."""
    rows = Activity.objects.using(read_alias()).going_on(now).order_by("began_at", "pk")
    if within is not None:
        rows = on_visible(rows, within)
    if (key := moment_key_of(cursor or None, int)) is not None:
        moment, number = key
        rows = rows.filter(Q(began_at__gt=moment) | Q(began_at=moment, pk__gt=number), began_at__gte=moment)
    steps = _read(rows[: limit + 1], now, with_usual=True, within=within)
    if len(steps) <= limit:
        return ActivityPage(steps=steps)
    moment, number = steps[limit - 1].key
    return ActivityPage(steps=steps[:limit], next_cursor=cursor_of(moment.isoformat(), number))


def hung_steps(now: datetime) -> list[RunningStep]:
    """Return the hung steps, the oldest first; three statements. Examines the oldest `MOST` running steps."""
    old = _current(now).filter(began_at__lte=now - timedelta(seconds=HUNG_AFTER))
    return [step for step in _read(old[:MOST_ACTIVITIES], now, with_usual=True) if step.is_hung]


def read_stack(run: Run, location: str, now: datetime) -> RunningStack | None:
    """Return the stack of the step running at this location, or None."""
    row = _current(now).filter(run=run, location=location).first()
    if row is None:
        return None
    text = str(redacted(run.workflow, "traceback", row.stack)) if row.stack else ""
    return RunningStack(text=text, asked_at=row.stack_asked_at, taken_at=row.stack_taken_at)


def _current(now: datetime) -> ActivityQuerySet:
    return Activity.objects.using(read_alias()).current(now).order_by("began_at", "pk")


def _read(
    rows: ActivityQuerySet, now: datetime, *, with_usual: bool, within: RunQuerySet | None = None
) -> list[RunningStep]:
    left = Case(When(attempt=LEFT, then=F("stack")), default=Value(""), output_field=SafeTextField())
    found: list[Any] = list(rows.select_related("run").only(*_ACTIVITY_COLUMNS).annotate(left=left))
    places = [
        (row.run.workflow, row.run_id, row.location)
        for row in found
        if row.kind == ActivityKind.STEP and row.attempt != LEFT
    ]
    usual = usual_durations(places, within) if with_usual else {}
    return [
        RunningStep(
            key=(row.began_at, row.pk),
            run_id=row.run_id,
            workflow=row.run.workflow,
            queue=row.run.queue,
            location=row.location,
            attempt=row.attempt,
            kind=row.kind,
            worker=row.worker,
            began_at=row.began_at,
            seconds=max(0.0, (now - row.began_at).total_seconds()),
            timeout=row.timeout,
            usual=None if row.attempt == LEFT else usual.get((row.run.workflow, row.run_id, row.location)),
            stack_asked_at=row.stack_asked_at,
            stack_taken_at=row.stack_taken_at,
            abandon_asked_at=row.abandon_asked_at,
            left=row.left,
            summary=line_of(row.run.workflow, row.summary),
        )
        for row in found
    ]


_ACTIVITY_COLUMNS: Final = (
    *("run__workflow", "run__queue", "location", "attempt", "kind", "worker", "began_at", "timeout"),
    *("stack_asked_at", "stack_taken_at", "abandon_asked_at", "summary"),
)


def saved_by(run: Run, locations: Sequence[str]) -> dict[str, Any]:
    """Return the newest saved details of each step at these locations, decoded and redacted; one statement.

    Show it to users with `view_payload`. A completed step has none: its commit deletes them.
    """
    if not locations:
        return {}
    found = StepSave.objects.using(read_alias()).filter(run=run, location__in=list(locations))
    return {
        each.location: payload(
            run.workflow, f"saved:{each.location}", each.details, Place(run.id, "saved", each.location)
        )
        for each in found.order_by()
    }
