"""The rows of schedules: columns derived from a rule and the clock, filled in before a row is saved.

`prepare` is a receiver of `pre_save`, so that `Schedule.objects.create`, forms and fixtures get the same row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import F

from durable import runtime
from durable.conf import conf
from durable.core.duration import parse_duration
from durable.core.errors import ScheduleNotFoundError
from durable.core.ids import check_queue
from durable.core.places import Place
from durable.models import Schedule
from durable.runtime import Runtime
from durable.schedules import read_rules
from durable.schedules.rules import check_catch_up, check_name, check_overlap, check_zone, jitter_of, next_after


def rows() -> Any:
    """Return the schedules of durable's database."""
    return Schedule.objects.using(conf.DATABASE)


def place_of(name: str) -> Place:
    """Return the place of a schedule's input."""
    return Place(name, "input", "schedule")


def encode_input(at: Runtime, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the codec text of a schedule's arguments. Raises PayloadError."""
    given = {"args": list(args), "kwargs": dict(kwargs)}
    return at.encode(given, f"the arguments of the schedule {name}", place_of(name))


def arguments_of(schedule: Schedule) -> tuple[list[Any], dict[str, Any]]:
    """Return the workflow's arguments. Raises PayloadError if they cannot be read."""
    given = runtime.current().decode(schedule.input, place_of(schedule.name))
    return given["args"], given["kwargs"]


def delay_of(schedule: Schedule, moment: datetime) -> timedelta:
    """Return the delay of the tick for this moment, at most up to the next moment."""
    if not schedule.jitter:
        return timedelta(0)
    following = next_moment(schedule, moment)
    most = schedule.jitter if following is None else min(schedule.jitter, following - moment)
    return jitter_of(schedule.name, moment, most)


def next_moment(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the schedule's first moment after `after`."""
    return next_after(schedule.rules.rules, schedule.zone_in_force, after)


def set_next(schedule: Schedule, moment: datetime | None) -> None:
    """Set the next moment, and when a timer has to tick."""
    schedule.next_at = moment
    is_still = schedule.paused or moment is None
    schedule.due_at = None if is_still or moment is None else moment + delay_of(schedule, moment)


def prepare(sender: type[Schedule], instance: Schedule, raw: bool = False, **_: Any) -> None:  # noqa: ARG001
    """Check a row that is about to be saved, and fill in the columns derived from its rule. Raises TypeError,
    ValueError.
    """
    if raw:  # a fixture
        return
    at = runtime.current()
    check_name(instance.name)
    rules = read_rules(instance.rule)
    before = None if instance._state.adding else rows().filter(pk=instance.pk).first()
    for name, value in rules.options.said().items():
        if not _is_said(instance, before, name):
            setattr(instance, name, value)
    instance.rule = rules.text
    check_zone(instance.zone)
    check_overlap(instance.overlap)
    check_catch_up(instance.catch_up)
    if instance.queue:
        check_queue(instance.queue)
    if instance.override_rule:
        instance.override_rule = read_rules(instance.override_rule).text
    if instance.override_zone:
        check_zone(instance.override_zone)
    instance.window = None if instance.window is None else parse_duration(instance.window, "a window")
    instance.jitter = parse_duration(instance.jitter, "a jitter")
    if instance.given_args is not None or instance.given_kwargs is not None or not instance.input:
        instance.input = encode_input(at, instance.name, instance.args, instance.kwargs)
        instance.given_args = instance.given_kwargs = None
    is_new_of_somebody = before is None and instance.origin == Schedule.Origin.ADMIN and instance.carried is None
    if is_new_of_somebody and conf.CARRY:
        from durable import carriers  # few projects need it

        instance.carried = carriers.saved()
    instance.created_at = instance.created_at or at.now()
    if before is None and at.schedules is not None:
        at.schedules.add(instance.name)
    is_same = before is not None and _timing(before) == _timing(instance)
    if before is not None and is_same and before.paused == instance.paused:  # the object may be older than a tick
        instance.next_at, instance.due_at = before.next_at, before.due_at
    if instance.next_at is None or not is_same:
        instance.next_at = next_moment(instance, at.now())
    if before is None or not is_same or before.paused != instance.paused:
        set_next(instance, instance.next_at)


def _is_said(instance: Schedule, before: Schedule | None, name: str) -> bool:
    """Return whether the object itself sets this option, whatever its rule says."""
    if name in ("args", "kwargs"):
        return getattr(instance, f"given_{name}") is not None
    if before is None:
        return name in instance.said
    return bool(getattr(instance, name) != getattr(before, name))


def _timing(schedule: Schedule) -> tuple[Any, ...]:
    # the text, not the rules: an unreadable rule must be replaceable
    return schedule.override_rule or schedule.rule, schedule.zone_in_force, schedule.jitter


def atomic(at: Runtime) -> AbstractContextManager[Any]:
    """Return a transaction around rows of schedules and of runs.

    The runs of a harness are in memory: then there are two transactions with the same outcome.
    """
    stack = ExitStack()
    if runtime.is_replaced():
        stack.enter_context(transaction.atomic(using=conf.DATABASE))
    stack.enter_context(at.store.transaction())
    return stack


def lock(name: str) -> Schedule:
    """Return the schedule, locked until the transaction ends. Raises ScheduleNotFoundError."""
    lock_table()
    found = rows().filter(name=name)
    if connections[conf.DATABASE].features.has_select_for_update:
        found = found.select_for_update()
    schedule: Schedule | None = found.first()
    if schedule is None:
        raise ScheduleNotFoundError(name)
    return schedule


def lock_table() -> None:
    """Take the write lock of a database that has no row locks, by a write that changes nothing."""
    if not connections[conf.DATABASE].features.has_select_for_update:
        rows().filter(pk=-1).update(changes=F("changes"))
