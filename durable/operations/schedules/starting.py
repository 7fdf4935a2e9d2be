"""The start of one moment of a schedule: its run is started, waits, is skipped, merged or refused.

A `TickBatch` collects what one transaction decides about several schedules, and writes it in few statements: the runs,
the ticks, the rows of the schedules. The caller holds the locks of the schedules' rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import Q

from durable.conf import conf
from durable.core.errors import DurableError, OperationError
from durable.core.ids import check_id, check_queue
from durable.core.places import Place
from durable.core.records import ENDED, RunRecord
from durable.core.registry import WorkflowDefinition
from durable.core.transitions import started
from durable.declared_limits import check_defined
from durable.models import Schedule, Tick
from durable.operations import lifecycle
from durable.operations.audit import Actor, acting_as
from durable.operations.common import announce, send_run_changed
from durable.operations.names import workflow_named
from durable.operations.schedules.rows import place_of, rows
from durable.runtime import Runtime
from durable.schedules import run_id_of
from durable.schedules.rules import text_of

#: Ticks of each schedule that are kept.
KEPT: Final = 200
#: Runs of a schedule that are remembered as perhaps open.
_MOST_OPEN: Final = 20

_Outcome = Tick.Outcome


@dataclass(slots=True)
class TickBatch:
    """The ticks of one transaction. `now` is their time. Call `write` once, at the end."""

    at: Runtime
    now: datetime
    states: dict[str, str]
    ticks: list[Tick] = field(default_factory=list)
    changed: dict[int, Schedule] = field(default_factory=dict)
    _new: list[tuple[Tick, Schedule, RunRecord]] = field(default_factory=list)
    _begun: list[Tick] = field(default_factory=list)

    @classmethod
    def about(cls, at: Runtime, now: datetime, schedules: Sequence[Schedule]) -> TickBatch:
        """Return an empty batch that knows the states of the schedules' earlier runs; one statement, or none."""
        ids = sorted({run_id for each in schedules for run_id in each.open_runs})
        return cls(at=at, now=now, states=at.store.states(ids) if ids else {})

    def open_runs(self, schedule: Schedule) -> list[str]:
        """Return the runs of earlier ticks that have not ended, oldest first."""
        return [each for each in schedule.open_runs if each in self.states and self.states[each] not in ENDED]

    def note(self, schedule: Schedule, moment: datetime, kind: str, outcome: str, why: str = "") -> Tick:
        """Record what became of a moment."""
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

    # -- the ways of a moment

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
                return self.note(schedule, moment, kind, _Outcome.MERGED, why)
            return self._wait(schedule, moment, kind, running)
        return self._replace(schedule, moment, kind, running)

    def start(self, schedule: Schedule, moment: datetime, kind: str) -> Tick:
        """Start the run of a moment, whatever else runs."""
        tick = self.note(schedule, moment, kind, _Outcome.STARTED)
        self._start(tick, schedule, moment)
        return tick

    def start_waiting(self, schedule: Schedule) -> None:
        """Start the run of the tick that waits, if there is one. The earlier runs have ended."""
        tick = self._no_longer_waiting(schedule)
        if tick is not None:
            self._start(tick, schedule, tick.moment)

    def refuse_waiting(self, schedule: Schedule, why: str) -> None:
        """Refuse the tick that waits."""
        tick = self._no_longer_waiting(schedule)
        if tick is not None:
            _refuse(tick, why)

    def count_ticks(self, schedule: Schedule) -> None:
        """Number the schedule's next tick after the newest that there is, whatever its row says."""
        newest = Tick.objects.using(conf.DATABASE).filter(schedule=schedule).order_by("-number")
        schedule.tick_count = newest.values_list("number", flat=True).first() or schedule.tick_count

    def _no_longer_waiting(self, schedule: Schedule) -> Tick | None:
        """Return the tick that waited, now as a started one; None if there is none."""
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
        """Cancel the earlier runs, and start at once if that has ended them; else wait until it has."""
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
            schedule.open_runs = [*self.open_runs(schedule), found.id][-_MOST_OPEN:]
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


#: What a tick changes in the row of its schedule.
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
