"""Running steps: those that workers are in, with their age and what is usual for them.

Reads the rows that workers write about steps that have run for a second. Rows of a lost lease are never returned. All
lists are bounded, and the durations are computed for a bounded number of places.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import Q
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.records import ActivityKind, RunState
from durable.inspection.humanize import span
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.payloads import redacted
from durable.inspection.step_durations import StepDurations, usual_durations
from durable.inspection.visibility import on_visible
from durable.inspection.wording import display_location
from durable.models import Activity, Run
from durable.models.run import RunQuerySet
from durable.models.workers import ActivityQuerySet

PAGE: Final = 50  # activities
MOST: Final = 200  # activities of one run, of the runs of a list, and that are examined for hung ones
HUNG_AFTER: Final = 60.0  # seconds after which a step may count as hung
HUNG_FACTOR: Final = 5.0  # times its 95th percentile
_ENOUGH: Final = 3  # successes from which on the percentile counts
_HELD: Final = (RunState.RUNNING, RunState.ROLLING_BACK)

#: The key of an activity in the list: since when it runs, and its number.
ActivityKey = tuple[datetime, int]
_CURSOR: Final = re.compile(r"(\d{1,16})-(\d{1,18})")  # microseconds since 1970, number
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStep:
    """An attempt of a step, or a call of a step's rollback handler, that runs now.

    `seconds` is its age, `timeout` in seconds, 0 for none. `usual` is None where it was not read or nothing is known.
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

    @property
    def is_rollback(self) -> bool:
        """Whether it is a rollback handler."""
        return self.kind == ActivityKind.ROLLBACK

    @property
    def is_hung(self) -> bool:
        """Whether it runs for much longer than usual, or past half of its timeout if its usual time is not known.

        No step is hung within its first minute.
        """
        if self.seconds < HUNG_AFTER:
            return False
        if (usual := self.usual) is not None and usual.p95 is not None and usual.sampled - usual.failed >= _ENOUGH:
            return self.seconds > HUNG_FACTOR * usual.p95
        return 0 < self.timeout < 2 * self.seconds

    @property
    def overrun(self) -> str:
        """The consequences of a step that goes on after its timeout: sentences, "" for any other."""
        if not 0 < self.timeout < self.seconds:
            return ""
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
        """The step, for people: 'step "charge"', or 'the rollback handler of "charge"'."""
        name = display_location(self.location)
        text = _('the rollback handler of "%(name)s"') if self.is_rollback else _('step "%(name)s"')
        return text % {"name": name}

    @property
    def limits(self) -> str:
        """The limits of its age: "timeout 51 m; usually 2 s", "" for nothing."""
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
        """The same with the age in its largest unit alone.

        It stays as it is for a minute at least, once the step has run for one.
        """
        return self._told(units=1)

    def _told(self, units: int) -> str:
        text = _("%(step)s, attempt %(number)d, for %(span)s") if self.attempt > 1 else _("%(step)s for %(span)s")
        words = text % {"step": self.name, "number": self.attempt, "span": span(self.seconds, units)}
        return f"{words} ({self.limits})" if self.limits else words


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityPage:
    """A page of what runs now, the oldest first; `next_cursor` is None at the end."""

    steps: Sequence[RunningStep]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """The stack of a running step, redacted; "" until a worker has answered. Show it to users with `view_payload`."""

    text: str
    asked_at: datetime | None
    taken_at: datetime | None


def activities_of(run: Run, now: datetime, within: RunQuerySet | None = None) -> list[RunningStep]:
    """Return what runs of the run at `now`, the oldest first.

    One statement, and two for what is usual if there is anything; none for a run that no worker has. `within` limits
    the runs that tell what is usual, for example to those that a user may see.
    """
    return activities_of_runs([run], now, with_usual=True, within=within)[run.id]


def activities_of_runs(
    runs: Iterable[Run], now: datetime, *, with_usual: bool = False, within: RunQuerySet | None = None
) -> defaultdict[str, list[RunningStep]]:
    """Return what runs of each of the runs, by id, the oldest first; one statement, two more `with_usual`."""
    found: defaultdict[str, list[RunningStep]] = defaultdict(list)
    held = [run.id for run in runs if run.state in _HELD and run.lease_expires_at is not None]
    if held:
        for step in _read(_current(now).filter(run__in=held)[:MOST], now, with_usual=with_usual, within=within):
            found[step.run_id].append(step)
    return found


def list_activities(
    now: datetime, *, cursor: str | None = None, limit: int = PAGE, within: RunQuerySet | None = None
) -> ActivityPage:
    """Return a page of what runs at `now`, the oldest first; three statements. `within` limits the runs.

    Raises InvalidCursorError.
    """
    rows = _current(now, within)
    if cursor:
        moment, number = _key_of(cursor)
        rows = rows.filter(Q(began_at__gt=moment) | Q(began_at=moment, pk__gt=number), began_at__gte=moment)
    steps = _read(rows[: limit + 1], now, with_usual=True, within=within)
    return ActivityPage(
        steps=steps[:limit], next_cursor=_cursor_of(steps[limit - 1].key) if len(steps) > limit else None
    )


def hung_steps(now: datetime, within: RunQuerySet | None = None) -> list[RunningStep]:
    """Return the steps that hang, the oldest first; three statements. The oldest `MOST` running steps are examined."""
    old = _current(now, within).filter(began_at__lte=now - timedelta(seconds=HUNG_AFTER))
    return [step for step in _read(old[:MOST], now, with_usual=True, within=within) if step.is_hung]


def read_stack(run: Run, location: str, now: datetime) -> RunningStack | None:
    """Return the stack of the step that runs at this place; None if none runs there."""
    row = _current(now).filter(run=run, location=location).first()
    if row is None:
        return None
    text = str(redacted(run.workflow, "traceback", row.stack)) if row.stack else ""
    return RunningStack(text=text, asked_at=row.stack_asked_at, taken_at=row.stack_taken_at)


def _cursor_of(key: ActivityKey) -> str:
    moment, number = key
    return f"{(moment - _EPOCH) // timedelta(microseconds=1)}-{number}"


def _key_of(cursor: str) -> ActivityKey:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidCursorError(cursor)
    return _EPOCH + timedelta(microseconds=int(found[1])), int(found[2])


def _current(now: datetime, within: RunQuerySet | None = None) -> ActivityQuerySet:
    rows = Activity.objects.using(conf.DATABASE).current(now).order_by("began_at", "pk")
    return rows if within is None else on_visible(rows, within)


def _read(
    rows: ActivityQuerySet, now: datetime, *, with_usual: bool, within: RunQuerySet | None = None
) -> list[RunningStep]:
    found: list[Any] = list(rows.select_related("run").only(*_COLUMNS))
    places = [(row.run.workflow, row.run_id, row.location) for row in found if row.kind == ActivityKind.STEP]
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
            usual=usual.get((row.run.workflow, row.run_id, row.location)),
            stack_asked_at=row.stack_asked_at,
            stack_taken_at=row.stack_taken_at,
            abandon_asked_at=row.abandon_asked_at,
        )
        for row in found
    ]


_COLUMNS: Final = (
    *("run__workflow", "run__queue", "location", "attempt", "kind", "worker", "began_at", "timeout"),
    *("stack_asked_at", "stack_taken_at", "abandon_asked_at"),
)
