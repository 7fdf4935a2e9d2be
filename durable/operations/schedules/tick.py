"""The tick: start the runs of due schedules, and set their next moments in the same transaction.

Any number of processes may tick at once, without a leader: each locks the schedules that it takes, and skips those that
others have locked. Under these locks a `TickBatch` decides about each moment: its run is started, waits, is skipped,
merged or refused. It writes the runs, the ticks and the rows of several schedules in few statements.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DataError, Error, IntegrityError, InternalError, connections
from django.db.models import Exists, OuterRef, Q

from durable import carriers, runtime
from durable.conf import conf
from durable.core.errors import DurableError, OperationError
from durable.core.ids import check_id, check_queue
from durable.core.places import Place
from durable.core.records import ENDED, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.transitions import started
from durable.declared_limits import check_defined
from durable.models import Run, Schedule, Tick, WorkerProcess
from durable.operations import lifecycle
from durable.operations.audit import Actor, acting_as
from durable.operations.common import announce, send_run_changed, workflow_named
from durable.operations.schedules.rows import atomic, delay_of, lock_table, next_moment, place_of, rows, set_next
from durable.runtime import Runtime
from durable.schedules import run_id_of
from durable.schedules.missed import LATE, Due, due_at
from durable.schedules.rules import text_of

#: Ticks of each schedule that are kept, and runs that are remembered as perhaps open: as many as a backfill starts.
KEPT: Final = 200

_Outcome = Tick.Outcome


@dataclass(slots=True)
class TickBatch:
    """The ticks of one transaction; `now` is their time. Call `write` once, at the end."""

    at: Runtime
    now: datetime
    states: dict[str, str]
    ticks: list[Tick] = field(default_factory=list)
    changed: dict[int, Schedule] = field(default_factory=dict)
    _new: list[tuple[Tick, Schedule, RunRecord]] = field(default_factory=list)
    _begun: list[Tick] = field(default_factory=list)

    @classmethod
    def about(cls, at: Runtime, now: datetime, schedules: Sequence[Schedule]) -> TickBatch:
        """Return an empty batch that knows the states of the schedules' earlier runs. One statement, or none."""
        ids = sorted({run_id for each in schedules for run_id in each.open_runs})
        return cls(at=at, now=now, states=at.store.states(ids) if ids else {})

    def open_runs(self, schedule: Schedule) -> list[str]:
        """Return the runs of earlier ticks that have not ended, oldest first."""
        return [each for each in schedule.open_runs if each in self.states and self.states[each] not in ENDED]

    def _remembered(self, schedule: Schedule) -> list[str]:
        """Return the runs of earlier ticks that are open, or that a recovery may open again, oldest first."""
        over = ENDED - {RunState.FAILED}
        return [each for each in schedule.open_runs if each in self.states and self.states[each] not in over]

    def note(self, schedule: Schedule, moment: datetime, kind: str, outcome: str, why: str = "") -> Tick:
        schedule.tick_count += 1
        tick = Tick(
            schedule=schedule,
            number=schedule.tick_count,
            moment=moment,
            kind=kind,
            outcome=outcome,
            why=why,
            decided_at=self.now,
        )
        self.ticks.append(tick)
        self.change(schedule)
        return tick

    def change(self, schedule: Schedule) -> None:
        """Write the schedule's row at the end."""
        self.changed[schedule.pk] = schedule

    # -- outcomes of a moment

    def tick(self, schedule: Schedule, moment: datetime, kind: str) -> Tick:
        """Decide about a moment by the schedule's `overlap`."""
        running = self.open_runs(schedule)
        if not running and schedule.waiting_number is None:
            return self.start(schedule, moment, kind)
        if schedule.overlap == "allow":
            return self.start(schedule, moment, kind)
        if schedule.overlap == "skip":
            return self.note(schedule, moment, kind, _Outcome.SKIPPED, self._still(running))
        if schedule.overlap == "queue":
            if schedule.waiting_number is not None and schedule.waiting_at is not None:
                why = f"the tick of {text_of(schedule.waiting_at)} waits already"
                why += ", until the schedule is resumed" if schedule.paused else ""
                return self.note(schedule, moment, kind, _Outcome.MERGED, why)
            return self._wait(schedule, moment, kind, running)
        return self._replace(schedule, moment, kind, running)

    def start(self, schedule: Schedule, moment: datetime, kind: str) -> Tick:
        """Start the run of a moment, whatever other runs are open."""
        tick = self.note(schedule, moment, kind, _Outcome.STARTED)
        self._start(tick, schedule, moment)
        return tick

    def start_waiting(self, schedule: Schedule) -> None:
        """Start the run of the waiting tick, if there is one. The earlier runs have ended."""
        tick = self._no_longer_waiting(schedule)
        if tick is not None:
            self._start(tick, schedule, tick.moment)

    def refuse_waiting(self, schedule: Schedule, why: str) -> None:
        tick = self._no_longer_waiting(schedule)
        if tick is not None:
            _refuse(tick, why)

    def count_ticks(self, schedule: Schedule) -> None:
        """Number the schedule's next tick after the newest existing one, whatever the schedule's row says."""
        newest = Tick.objects.using(conf.DATABASE).filter(schedule=schedule).order_by("-number")
        schedule.tick_count = newest.values_list("number", flat=True).first() or schedule.tick_count

    def _no_longer_waiting(self, schedule: Schedule) -> Tick | None:
        """Return the tick that waited, now as started, or None."""
        moment, number = schedule.waiting_at, schedule.waiting_number
        schedule.waiting_at = schedule.waiting_number = None
        self.change(schedule)
        if moment is None or number is None:
            return None
        tick = Tick.objects.using(conf.DATABASE).filter(schedule=schedule, number=number).first()
        if tick is None:
            return self.note(schedule, moment, "tick", _Outcome.STARTED)
        tick.outcome, tick.why = _Outcome.STARTED, ""
        self._begun.append(tick)
        return tick

    def _wait(self, schedule: Schedule, moment: datetime, kind: str, running: Sequence[str]) -> Tick:
        tick = self.note(schedule, moment, kind, _Outcome.WAITING, self._still(running))
        schedule.waiting_at, schedule.waiting_number = moment, tick.number
        if running:
            schedule.last_run_id = running[-1]
        return tick

    def _replace(self, schedule: Schedule, moment: datetime, kind: str, running: Sequence[str]) -> Tick:
        """Cancel the earlier runs. Start at once if they have then ended; else wait for their end."""
        actor = Actor("code", label=f"schedule {schedule.name}")
        reason = f'replaced by the tick of {text_of(moment)} (overlap is "replace")'
        for run_id in running:
            with acting_as(actor, reason=reason):
                try:
                    lifecycle.cancel(run_id)
                except OperationError:  # it ends already, or is being cancelled
                    continue
        self.states |= self.at.store.states(list(running))
        left = self.open_runs(schedule)
        if schedule.waiting_number is not None:
            self._give_up_waiting(schedule, moment)
        if not left:
            return self.start(schedule, moment, kind)
        return self._wait(schedule, moment, kind, left)

    def _give_up_waiting(self, schedule: Schedule, moment: datetime) -> None:
        waiting = Tick.objects.using(conf.DATABASE).filter(schedule=schedule, number=schedule.waiting_number or 0)
        waiting.update(outcome=_Outcome.MERGED, why=f"replaced by the tick of {text_of(moment)} before it could begin")
        schedule.waiting_at = schedule.waiting_number = None

    def _still(self, running: Sequence[str]) -> str:
        if not running:
            return "the tick before still waits"
        newest = running[-1]
        return f'the run "{newest}" of an earlier tick has not ended: it is {self.states[newest]}'

    # -- starting

    def _start(self, tick: Tick, schedule: Schedule, moment: datetime) -> None:
        try:
            run = _new_run(self.at, schedule, moment, self.now)
        except (DurableError, ValueError, TypeError, LookupError) as error:
            _refuse(tick, str(error))
            return
        self._new.append((tick, schedule, run))

    def write(self) -> list[Tick]:
        """Write everything, and return the ticks. Workers are notified after the commit."""
        created = self.at.store.create([run for _, _, run in self._new]) if self._new else []
        for (tick, schedule, _), (found, is_new) in zip(self._new, created, strict=True):
            if not is_new:
                _refuse(tick, f'the id "{found.id}" is taken, by a run of "{found.workflow}"')
                continue
            tick.run_id = schedule.last_run_id = found.id
            schedule.open_runs = [*self._remembered(schedule), found.id][-KEPT:]
            self.states[found.id] = str(found.state)
        Tick.objects.using(conf.DATABASE).bulk_create(self.ticks)
        for tick in self._begun:
            mine = Tick.objects.using(conf.DATABASE).filter(pk=tick.pk)
            mine.update(outcome=tick.outcome, why=tick.why, run_id=tick.run_id, decided_at=self.now)
        for schedule in self.changed.values():
            rows().filter(pk=schedule.pk).update(**{name: getattr(schedule, name) for name in _WRITTEN})
        self._trim()
        self._announce([run for run, is_new in created if is_new])
        return [*self.ticks, *self._begun]

    def _trim(self) -> None:
        old = Q()
        for schedule in self.changed.values():
            if schedule.tick_count > KEPT:
                old |= Q(schedule=schedule.pk, number__lte=schedule.tick_count - KEPT)
        if old:
            Tick.objects.using(conf.DATABASE).filter(old).delete()

    def _announce(self, runs: Sequence[RunRecord]) -> None:
        for queue, wake_at in {(run.queue, run.wake_at) for run in runs}:
            announce(self.at, queue, wake_at)
        if runs:
            send_run_changed(self.at, runs, previous="")


#: The columns of a schedule that a tick changes.
_WRITTEN: Final = (
    *("next_at", "due_at", "waiting_at", "waiting_number", "last_at", "last_run_id", "open_runs", "tick_count"),
)


def _refuse(tick: Tick, why: str) -> None:
    tick.outcome, tick.why = _Outcome.REFUSED, why[:2_000]


def _new_run(at: Runtime, schedule: Schedule, moment: datetime, now: datetime) -> RunRecord:
    definition = definition_of(at, schedule.workflow)
    check_defined(definition.limits)
    given: dict[str, Any] = at.decode(schedule.input, place_of(schedule.name))
    check_arguments(definition, given["args"], given["kwargs"])
    run_id = check_id(run_id_of(schedule.name, moment))
    told = {**given, "scheduled_for": text_of(moment)}
    return RunRecord(
        id=run_id,
        workflow=schedule.workflow,
        queue=check_queue(schedule.queue or definition.queue),
        input=at.encode(told, f"the input of {schedule.workflow}", Place(run_id, "input")),
        created_at=now,
        # somebody has made the schedule in a request of theirs; one of the code's begins where nothing is active
        carried=carriers.saved() if schedule.origin == Schedule.Origin.CODE else schedule.carried,
        **started(now),
    )


def definition_of(at: Runtime, workflow: str) -> WorkflowDefinition:
    """Return the workflow's definition. Raises UnknownWorkflowError."""
    found = None if at.find_workflow is None else at.find_workflow(workflow)
    return workflow_named(workflow) if found is None else found


def check_arguments(definition: WorkflowDefinition, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise TypeError unless the workflow takes these arguments."""

    try:
        inspect.signature(definition.function).bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{definition.name} does not take the arguments of the schedule: {error}") from None


logger = logging.getLogger("durable.timer")

#: The most schedules of one transaction.
AT_ONCE: Final = 50
#: The delay of a schedule that raises an error, or whose workflow this timer does not know.
_LEAVE: Final = timedelta(seconds=1)
#: Database errors caused by the rows of a statement. Other errors may be gone at the next try.
_OF_ROWS: Final = (IntegrityError, DataError, InternalError)
#: A worker that was seen within this time may be alive.
_ALIVE: Final = timedelta(minutes=2)


def next_look(now: datetime) -> datetime | None:
    """Return when the next tick is due: `now` if it is due already, None if there is none. One statement along an
    index.
    """
    waiting = Exists(_waiting_whose_run_has_ended(rows()))
    found = (
        rows().filter(due_at__isnull=False).order_by("due_at").annotate(ready=waiting).values_list("due_at", "ready")
    )
    first = found.first()
    if first is None:
        return now if _waiting_whose_run_has_ended(rows()).exists() else None
    due, ready = first
    return now if ready else due


def next_due(names: Collection[str]) -> datetime | None:
    """Return when the first of these schedules is due, or None."""
    found = rows().filter(name__in=names, due_at__isnull=False).order_by("due_at")
    due: datetime | None = found.values_list("due_at", flat=True).first()
    return due


def tick_due(now: datetime, *, only: Collection[str] | None = None) -> int:
    """Tick up to `AT_ONCE` due schedules, the longest due first; return how many were processed.

    `only`: just these schedules, by name. If one raises an error, each is ticked alone, and that one is refused. Raises
    errors of the connection.
    """
    at = runtime.current()
    try:
        with atomic(at):
            return _tick(at, now, _locked(at, now, AT_ONCE, only))
    except Exception as error:
        if _is_of_connection(error):
            raise
        logger.exception("schedules could not be ticked together; each is ticked alone")
    return _one_by_one(at, now, AT_ONCE, only)


def _is_of_connection(error: Exception) -> bool:
    """Return whether the error means that the database cannot be reached. The end of a transaction reopens a lost
    connection.
    """
    return isinstance(error, Error) and not connections[conf.DATABASE].is_usable()


def _one_by_one(at: Runtime, now: datetime, most: int, only: Collection[str] | None) -> int:
    """Tick each schedule in its own transaction. Raises the error of a schedule that could not even be put off."""
    names = list(_due(rows(), now, only).order_by("due_at").values_list("name", flat=True)[:most])
    waiting = _ready(at, rows().exclude(name__in=names), only).order_by("waiting_at")
    names += waiting.values_list("name", flat=True)[: most - len(names)]
    trouble: Exception | None = None
    for name in names:
        try:
            with atomic(at):
                _tick(at, now, _locked(at, now, 1, [name]))
        except Exception as error:
            if _is_of_connection(error):
                raise
            logger.exception("the schedule %s could not be ticked", name)
            trouble = _left_behind(at, now, name, error) or trouble
    if trouble is not None:
        raise trouble
    return len(names)


def _left_behind(at: Runtime, now: datetime, name: str, error: Exception) -> Exception | None:
    """Refuse what the schedule was to start; or put the schedule off a little, if that may help or the refusal fails.

    Returns the error if the schedule is still due.
    """
    if not isinstance(error, Error) or isinstance(error, _OF_ROWS):
        try:
            with atomic(at):
                for schedule in _locked(at, now, 1, [name]):
                    _pass_over(at, now, schedule, error)
            return None
        except Exception as another:
            if _is_of_connection(another):
                raise
            logger.exception("the schedule %s could not be refused; it is put off", name)
    is_put_off = rows().filter(name=name, due_at__lte=now).update(due_at=now + _LEAVE)
    return None if is_put_off else error


def _pass_over(at: Runtime, now: datetime, schedule: Schedule, error: Exception) -> None:
    """Refuse the waiting tick if it may begin, or else the due moment, and continue with the next."""
    why = f"{type(error).__name__}: {_first_line(error)}"[:2_000]
    batch = TickBatch.about(at, now, [schedule])
    batch.count_ticks(schedule)
    is_waiting = schedule.waiting_at is not None and not batch.open_runs(schedule)
    if is_waiting:
        batch.refuse_waiting(schedule, why)
    else:
        batch.note(schedule, schedule.next_at or now, "tick", Tick.Outcome.REFUSED, why)
    try:
        set_next(schedule, schedule.next_at if is_waiting else next_moment(schedule, now))
    except Exception:  # noqa: BLE001  # the rule itself cannot be read: an operator has to edit it
        schedule.due_at = None
    batch.write()


def _first_line(error: Exception) -> str:
    """Return the first line of the message: the other lines of a database's error show the values of a row."""
    return next(iter(str(error).splitlines()), "")


def _locked(at: Runtime, now: datetime, most: int, only: Collection[str] | None) -> list[Schedule]:
    """Return the due schedules, then those whose waiting tick may begin; all locked."""
    lock_table()
    found = list(_with_locks(_due(rows(), now, only).order_by("due_at"))[:most])
    if len(found) < most:
        left = rows().exclude(pk__in=[each.pk for each in found])
        found += list(_with_locks(_ready(at, left, only).order_by("waiting_at"))[: most - len(found)])
    return found


def _due(schedules: Any, now: datetime, only: Collection[str] | None) -> Any:
    found = schedules.filter(due_at__lte=now)
    return found if only is None else found.filter(name__in=only)


def _ready(at: Runtime, schedules: Any, only: Collection[str] | None) -> Any:
    if not runtime.is_replaced():
        found = _waiting_whose_run_has_ended(schedules)
        return found if only is None else found.filter(name__in=only)
    # the runs of a harness are not in the database
    waiting = list(schedules.filter(waiting_at__isnull=False, paused=False, name__in=only or ()))
    states = at.store.states([each.last_run_id for each in waiting])
    return schedules.filter(pk__in=[each.pk for each in waiting if states.get(each.last_run_id, "completed") in ENDED])


def _waiting_whose_run_has_ended(schedules: Any) -> Any:
    ended = [state.value for state in ENDED]
    running = Run.objects.using(conf.DATABASE).filter(id=OuterRef("last_run_id")).exclude(state__in=ended)
    return schedules.filter(waiting_at__isnull=False, paused=False).exclude(Exists(running))


def _with_locks(schedules: Any) -> Any:
    features = connections[conf.DATABASE].features
    if not features.has_select_for_update:
        return schedules
    return schedules.select_for_update(
        skip_locked=features.has_select_for_update_skip_locked, no_key=features.has_select_for_no_key_update
    )


def _tick(at: Runtime, now: datetime, schedules: list[Schedule]) -> int:
    if not schedules:
        return 0
    batch = TickBatch.about(at, now, schedules)
    for schedule in schedules:
        _look_at(batch, schedule)
    batch.write()
    return len(schedules)


def _look_at(batch: TickBatch, schedule: Schedule) -> None:
    now = batch.now
    batch.change(schedule)
    if schedule.waiting_at is not None:
        running = batch.open_runs(schedule)
        if running:
            schedule.last_run_id = running[-1]  # the one to wait for
        else:
            batch.start_waiting(schedule)
            set_next(schedule, schedule.next_at)
            return
    if schedule.next_at is None:
        set_next(schedule, None)
        return
    due = due_at(
        schedule.rules.rules,
        schedule.zone_in_force,
        schedule.next_at,
        now,
        catch_up=schedule.catch_up,  # type: ignore[arg-type]  # the constraint of the column
        window=schedule.window,
        delay=lambda moment: delay_of(schedule, moment),
    )
    if due is None:
        set_next(schedule, schedule.next_at)
    elif _is_for_others(batch, schedule, due):
        schedule.due_at = now + _LEAVE
    else:
        _decide(batch, schedule, due)


def _decide(batch: TickBatch, schedule: Schedule, due: Due) -> None:
    for place, missed in enumerate(due.missed):
        why = missed.why + (
            "; earlier moments were missed too and are not listed" if due.is_incomplete and not place else ""
        )
        batch.note(schedule, missed.moment, "tick", Tick.Outcome.MISSED, why)
    if due.tick is None:
        set_next(schedule, due.next_at)
        return
    is_next_in_line = due.is_catching_up and schedule.catch_up == "all" and schedule.overlap != "allow"
    running = batch.open_runs(schedule)
    if is_next_in_line and (running or schedule.waiting_at is not None):
        # Missed moments are made up for one after the other: each waits for the end of the earlier run.
        schedule.next_at, schedule.due_at = due.tick, None
        if schedule.waiting_at is None:
            schedule.waiting_at, schedule.last_run_id = due.tick, running[-1]
        return
    schedule.last_at = due.tick
    batch.tick(schedule, due.tick, "catch_up" if due.is_catching_up else "tick")
    set_next(schedule, due.next_at)


def _is_for_others(batch: TickBatch, schedule: Schedule, due: Due) -> bool:
    """Return whether this process lacks the workflow's code and another may have it, as during a deploy."""
    if runtime.is_replaced() or due.tick is None or batch.now - due.tick - delay_of(schedule, due.tick) > LATE:
        return False
    try:
        definition_of(batch.at, schedule.workflow)
    except LookupError:
        others = WorkerProcess.objects.using(conf.DATABASE).filter(last_seen_at__gte=batch.now - _ALIVE)
        return bool(others.exclude(build=conf.build).exists())
    return False
