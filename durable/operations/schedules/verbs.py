"""The verbs on schedules: each is one audited change under the lock of the schedule's row.

The audit log names the schedule. `acting_as(expected=)` takes a `revision_of` the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction

from durable import runtime
from durable.conf import conf
from durable.core.duration import Duration, check_moment
from durable.core.errors import ScheduleError, StaleScheduleError
from durable.models import Schedule, Tick
from durable.operations.audit import Attribution, audited
from durable.operations.common import check_not_an_order, check_served, require_step
from durable.operations.schedules.rows import arguments_of, atomic, lock, next_moment
from durable.operations.schedules.tick import KEPT, TickBatch, check_arguments, definition_of
from durable.runtime import Runtime
from durable.schedules import CatchUp, Overlap, RuleLike, read_rules, run_id_of
from durable.schedules.rules import check_zone, upcoming

#: The most moments of one backfill: as many as ticks are kept.
MOST_BACKFILLED: Final = KEPT

_FIRST_YEAR: Final = 1970  # of a backfill


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The moments that a backfill starts, oldest first, and how many moments of the period already have a run."""

    moments: Sequence[datetime]
    existing: int


def revision_of(schedule: Schedule) -> str:
    """Return an opaque text for the schedule that an operator saw, for `acting_as(expected=)`.

    Ticks do not change it.
    """
    return f"schedule {schedule.pk} {schedule.changes}"


def create(
    name: str,
    workflow: str,
    rule: RuleLike,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str = "",
    zone: str | None = None,
    overlap: Overlap | None = None,
    catch_up: CatchUp | None = None,
    window: Duration | None = None,
    jitter: Duration | None = None,
) -> Schedule:
    """Create a schedule, as `Schedule.objects.create` does, and log it.

    Raises OperationDeniedError, UnknownWorkflowError, TypeError and ValueError for invalid arguments, and ScheduleError
    for a name that is taken.
    """
    require_step("creating a schedule", "create it in a step")
    at = runtime.current()
    with audited(at, "create_schedule", "", subject=("schedule", name)) as by, atomic(at):
        check_not_an_order(workflow, "create_schedule")
        _check_queue(queue)
        options = read_rules(rule).options
        args = options.args if args is None else args
        kwargs = options.kwargs if kwargs is None else kwargs
        check_arguments(definition_of(at, workflow), args or (), dict(kwargs or {}))
        try:
            with transaction.atomic(using=conf.DATABASE):
                made = Schedule.objects.db_manager(conf.DATABASE).create(
                    name=name,
                    workflow=workflow,
                    rule=rule,
                    args=args,
                    kwargs=kwargs,
                    queue=queue,
                    zone=zone,
                    overlap=overlap,
                    catch_up=catch_up,
                    window=window,
                    jitter=jitter,
                )
        except IntegrityError:
            raise ScheduleError(f'there is a schedule with the name "{name}" already; choose another name') from None
        _log(at, by, made, after="active", detail=f"{workflow}: {made.rule}")
    return made


def pause(name: str) -> Schedule:
    """Pause the schedule: it starts nothing until it is resumed. Existing runs continue; a waiting tick keeps waiting.

    Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError, and ScheduleError if it is paused already.
    """
    with _changing("pause_schedule", name) as change:
        schedule = change.schedule
        if schedule.paused:
            raise ScheduleError(f'the schedule "{name}" is paused already')
        schedule.paused = True
        schedule.paused_at, schedule.paused_by = change.at.now(), change.actor
        schedule.pause_reason = change.by.reason
        change.save(before="active", after="paused")
    return schedule


def resume(name: str) -> Schedule:
    """Resume the schedule from its next moment on; moments of the pause are not made up for.

    Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError, and ScheduleError if it is not paused, or
    the code no longer has it.
    """
    with _changing("resume_schedule", name) as change:
        schedule = change.schedule
        if not schedule.paused:
            raise ScheduleError(f'the schedule "{name}" is not paused')
        if schedule.gone_at is not None:
            raise ScheduleError(
                f'the schedule "{name}" is no longer in the code, which owns it: deploy code that has it, or delete it'
            )
        schedule.paused, schedule.paused_at, schedule.paused_by, schedule.pause_reason = False, None, "", ""
        schedule.next_at = next_moment(schedule, change.at.now())
        change.save(before="paused", after="active")
    return schedule


def run_now(name: str, *, force: bool = False) -> Tick:
    """Tick the schedule now, even if it is paused; return the tick. Its moment is the time of the call.

    `overlap` decides as for any tick; with `force` the run is started in any case. Raises OperationDeniedError,
    ScheduleNotFoundError and StaleScheduleError.
    """
    with _changing("run_schedule", name) as change:
        batch = TickBatch.about(change.at, change.at.now(), [change.schedule])
        act: Callable[[Schedule, datetime, str], Tick] = batch.start if force else batch.tick
        tick = act(change.schedule, batch.now, "run_now")
        batch.write()
        change.log(detail=f"{tick.outcome}: {tick.run_id or tick.why}{' (forced)' if force else ''}")
    return tick


def plan_backfill(name: str, since: datetime, until: datetime) -> Backfill:
    """Return what `backfill` would start. Raises as it does."""
    at = runtime.current()
    with atomic(at):
        return _planned(at, lock(name), since, until)


def backfill(name: str, since: datetime, until: datetime) -> list[Tick]:
    """Start a run for each moment from `since` to `until` (inclusive) that has none; return the ticks.

    The runs begin at once, whatever `overlap` says. Raises OperationDeniedError, ScheduleNotFoundError,
    StaleScheduleError, ValueError for a period that has more than `MOST_BACKFILLED` moments or is not in the past.
    """
    with _changing("backfill_schedule", name) as change:
        planned = _planned(change.at, change.schedule, since, until)
        batch = TickBatch.about(change.at, change.at.now(), [change.schedule])
        ticks = [batch.start(change.schedule, each, "backfill") for each in planned.moments]
        batch.write()
        started = sum(each.outcome == Tick.Outcome.STARTED for each in ticks)
        change.log(detail=f"{since.isoformat()} to {until.isoformat()}: {started} runs started")
    return ticks


def edit(
    name: str,
    *,
    rule: RuleLike | None = None,
    zone: str | None = None,
    queue: str | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    overlap: Overlap | None = None,
    catch_up: CatchUp | None = None,
    window: Duration | None = None,
    no_window: bool = False,
    jitter: Duration | None = None,
) -> Schedule:
    """Change a schedule that operators own; omitted options stay. The next moment is computed from the new rule.

    Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError, ScheduleError for a schedule of the code,
    and TypeError and ValueError for invalid values.
    """
    given: dict[str, Any] = {
        "rule": rule,
        "zone": zone,
        "queue": queue,
        "overlap": overlap,
        "catch_up": catch_up,
        "jitter": jitter,
    }
    said = {} if rule is None else read_rules(rule).options.said()  # of the rule: cron("0 6 * * *", zone="Asia/Tokyo")
    changed = {column: said.get(column) if value is None else value for column, value in given.items()}
    changed = {column: value for column, value in changed.items() if value is not None}
    window = said.get("window") if window is None else window
    args = said.get("args") if args is None else args
    kwargs = said.get("kwargs") if kwargs is None else kwargs
    _check_queue(changed.get("queue") or "")
    if window is not None or no_window:
        changed["window"] = None if no_window else window
    with _changing("edit_schedule", name) as change:
        schedule = change.schedule
        if schedule.origin == Schedule.Origin.CODE:
            raise ScheduleError(
                f'the schedule "{name}" is in the code, which owns it: override its rule, or edit the code'
            )
        for column, value in changed.items():
            setattr(schedule, column, value)
        if args is not None or kwargs is not None:
            before = arguments_of(schedule)
            schedule.args = before[0] if args is None else args
            schedule.kwargs = before[1] if kwargs is None else kwargs
            check_arguments(definition_of(change.at, schedule.workflow), schedule.args, dict(schedule.kwargs))
            changed["arguments"] = ""  # the log is seen by users who may not see payloads
        change.save(detail=", ".join(f"{column} {value}".strip() for column, value in changed.items()))
    return schedule


def override(name: str, rule: RuleLike, *, zone: str | None = None) -> Schedule:
    """Override the code's rule until `take_back`. The override survives deploys.

    Without a `zone` the schedule's own stays. Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError,
    ScheduleError for a schedule that operators own, and TypeError and ValueError.
    """
    rules = read_rules(rule)
    chosen = zone or rules.options.zone or ""
    if chosen:
        check_zone(chosen)
    with _changing("override_schedule", name) as change:
        schedule = change.schedule
        if schedule.origin != Schedule.Origin.CODE:
            raise ScheduleError(f'the schedule "{name}" is not in the code: edit it instead')
        before = schedule.override_rule or schedule.rule
        schedule.override_rule, schedule.override_zone = rules.text, chosen
        change.save(before=before, after=rules.text, detail=schedule.zone_in_force)
    return schedule


def take_back(name: str) -> Schedule:
    """Revert the override: the code's rule is in force again.

    Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError, and ScheduleError if it is not overridden.
    """
    with _changing("take_back_override", name) as change:
        schedule = change.schedule
        if not schedule.is_overridden:
            raise ScheduleError(f'the rule of the schedule "{name}" is not overridden')
        before = schedule.override_rule or schedule.rule
        schedule.override_rule = schedule.override_zone = ""
        change.save(before=before, after=schedule.rule)
    return schedule


def delete(name: str) -> None:
    """Delete the schedule and its ticks. Its runs stay.

    Raises OperationDeniedError, ScheduleNotFoundError, StaleScheduleError, and ScheduleError for a schedule that the
    code has.
    """
    with _changing("delete_schedule", name) as change:
        schedule = change.schedule
        if schedule.origin == Schedule.Origin.CODE and schedule.gone_at is None:
            raise ScheduleError(f'the schedule "{name}" is in the code, which would make it again: pause it instead')
        change.log(before="paused" if schedule.paused else "active", detail=f"{schedule.workflow}: {schedule.rule}")
        schedule.delete(using=conf.DATABASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A verb on a locked schedule."""

    at: Runtime
    by: Attribution
    schedule: Schedule

    @property
    def actor(self) -> str:
        return self.by.done(before="", after="").actor_label

    def save(self, *, before: str = "", after: str = "", detail: str = "") -> None:
        """Write the schedule's row, and log the change."""
        self.schedule.changes += 1
        self.schedule.save(using=conf.DATABASE)
        self.log(before=before, after=after, detail=detail)

    def log(self, *, before: str = "", after: str = "", detail: str = "") -> None:
        _log(self.at, self.by, self.schedule, before=before, after=after, detail=detail)


@contextmanager
def _changing(action: str, name: str) -> Iterator[_Change]:
    require_step("changing a schedule", "change it in a step")
    at = runtime.current()
    with audited(at, action, "", subject=("schedule", name)) as by, atomic(at):
        schedule = lock(name)
        if by.saw_other(revision_of(schedule)):
            raise StaleScheduleError(name)
        yield _Change(at=at, by=by, schedule=schedule)


def _log(
    at: Runtime, by: Attribution, schedule: Schedule, *, before: str = "", after: str = "", detail: str = ""
) -> None:
    named = f'schedule "{schedule.name}"'
    at.store.log([by.done(before=before, after=after, detail=f"{named}: {detail}" if detail else named)])


def _check_queue(queue: str) -> None:
    """Raise ValueError for a queue that no worker can serve; "" stands for the workflow's queue."""
    if queue and conf.REDIS:
        check_served(queue)


def _planned(at: Runtime, schedule: Schedule, since: datetime, until: datetime) -> Backfill:
    check_moment(since, "the begin of a backfill")
    check_moment(until, "the end of a backfill")
    if until > at.now() or since > until:
        raise ValueError(
            "a backfill is of a period in the past: its end is not later than now, its begin not later than its end"
        )
    if since.year < _FIRST_YEAR:
        raise ValueError(f"a backfill begins in {_FIRST_YEAR} or later, not {since.isoformat()}")
    moments = []
    for each in upcoming(schedule.rules.rules, schedule.zone_in_force, since - timedelta(microseconds=1)):
        if each > until:
            break
        moments.append(each)
        if len(moments) > MOST_BACKFILLED:
            raise ValueError(
                f"the period has more than {MOST_BACKFILLED} moments, the most of one backfill: choose a shorter one"
            )
    taken = at.store.states([run_id_of(schedule.name, each) for each in moments]) if moments else {}
    free = [each for each in moments if run_id_of(schedule.name, each) not in taken]
    return Backfill(moments=free, existing=len(taken))
