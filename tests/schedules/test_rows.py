"""The rows of schedules as objects save them: an object older than a tick, a rule that can no longer be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable import Context, Schedule, cron, workflow
from durable.models import Tick
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of, rows
from durable.operations.schedules.tick import tick_due

pytestmark = pytest.mark.django_db


@workflow(name="tests.schedule_rows.job")
def job(ctx: Context) -> None:
    return None


@workflow(name="tests.schedule_rows.takes")
def takes(ctx: Context, a: int = 0, b: int = 0) -> None:
    return None


def make() -> Schedule:
    return Schedule.objects.create(name="s", workflow="tests.schedule_rows.job", rule="0 * * * *")


def next_of(schedule: Schedule) -> datetime:
    found = schedule.next_at
    assert found is not None
    return found


def test_a_save_of_an_older_object_takes_no_tick_back() -> None:
    schedule = make()
    first = next_of(schedule)
    tick_due(first)
    after = Schedule.objects.values().get()
    schedule.overlap = "allow"
    schedule.save()
    assert Schedule.objects.values().get() == {**after, "overlap": "allow"}
    tick_due(first + timedelta(hours=1))
    ticks = Tick.objects.order_by("number").values_list("moment", "outcome")
    assert list(ticks) == [(first, "started"), (first + timedelta(hours=1), "started")]


def test_the_next_moment_is_written_with_the_columns_that_it_follows_from() -> None:
    schedule = make()
    schedule.rule = "30 * * * *"
    schedule.save(update_fields=["rule"])
    found = Schedule.objects.get()
    assert next_of(found).minute == 30
    assert found.due_at == found.next_at
    schedule.paused = True
    schedule.save(update_fields=["paused"])
    assert Schedule.objects.get().due_at is None


def test_a_rule_that_cannot_be_read_can_be_replaced() -> None:
    schedule = make()
    rows().update(rule="nonsense")
    tick_due(next_of(schedule))
    verbs.edit("s", rule="30 * * * *")
    assert next_of(Schedule.objects.get()).minute == 30


def test_an_override_that_cannot_be_read_can_be_taken_back() -> None:
    schedule = make()
    rows().update(origin="code", override_rule="nonsense")
    tick_due(next_of(schedule))
    verbs.take_back("s")
    assert Schedule.objects.get().due_at is not None


def test_an_edit_takes_the_options_of_the_rule() -> None:
    Schedule.objects.create(
        name="s", workflow="tests.schedule_rows.job", rule=cron("0 6 * * *", zone="Europe/Berlin", overlap="queue")
    )
    verbs.edit("s", rule=cron("0 6 * * *", zone="Asia/Tokyo", overlap="allow", window="1 hour"), overlap="replace")
    found = Schedule.objects.get()
    assert (found.zone, found.overlap, found.window) == ("Asia/Tokyo", "replace", timedelta(hours=1))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ("Asia/Tokyo", "queue", "all", timedelta(hours=2), timedelta(minutes=5))),
        (
            {"zone": "UTC", "overlap": "skip", "catch_up": "last", "window": "12 hours", "jitter": 0},
            ("UTC", "skip", "last", timedelta(hours=12), timedelta(0)),
        ),
    ],
)
@pytest.mark.parametrize("how", ["create", "save", "verb"])
def test_what_a_schedule_says_itself_comes_before_what_its_rule_says(
    how: str, said: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    rule = cron("0 9 * * *", zone="Asia/Tokyo", overlap="queue", catch_up="all", window="2 hours", jitter="5 min")
    if how == "create":
        Schedule.objects.create(name="s", workflow=job.name, rule=rule, **said)
    elif how == "save":
        Schedule(name="s", workflow=job.name, rule=rule, **said).save()
    else:
        verbs.create("s", job.name, rule, **said)
    found = Schedule.objects.get()
    assert (found.zone, found.overlap, found.catch_up, found.window, found.jitter) == expected
    assert next_of(found).hour == (9 if said else 0)


@pytest.mark.parametrize("how", ["create", "save", "verb"])
def test_arguments_of_a_rule_are_those_of_the_schedule_unless_it_has_its_own(how: str) -> None:
    rule = cron("0 9 * * *", args=[1], kwargs={"b": 2})
    given: dict[str, dict[str, Any]] = {
        "rule": {},
        "own": {"args": [3], "kwargs": {"b": 4}},
        "none": {"args": [], "kwargs": {}},
    }
    for name, own in given.items():
        columns: dict[str, Any] = {"name": name, "workflow": takes.name, "rule": rule, **own}
        if how == "create":
            Schedule.objects.create(name=name, workflow=takes.name, rule=rule, **own)
        elif how == "save":
            Schedule(name=name, workflow=takes.name, rule=rule, **own).save()
        else:
            verbs.create(**columns)
    found = {each.name: arguments_of(each) for each in rows()}
    assert found == {"rule": ([1], {"b": 2}), "own": ([3], {"b": 4}), "none": ([], {})}


def test_a_new_rule_of_a_saved_object_brings_its_options() -> None:
    Schedule.objects.create(name="s", workflow=job.name, rule=cron("0 9 * * *", zone="Europe/Berlin", overlap="queue"))
    found = Schedule.objects.get()
    found.rule = cron("0 9 * * *", zone="Asia/Tokyo", overlap="allow")
    found.overlap = "replace"
    found.save()
    again = Schedule.objects.get()
    assert (again.zone, again.overlap, next_of(again).hour) == ("Asia/Tokyo", "replace", 0)


def test_a_backfill_from_the_first_year() -> None:
    make()
    with pytest.raises(ValueError, match="1970 or later"):
        verbs.plan_backfill("s", datetime.min.replace(tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))


def test_a_jitter_longer_than_the_interval_loses_no_moment() -> None:
    schedule = Schedule.objects.create(
        name="s", workflow="tests.schedule_rows.job", rule="every 1 minute", jitter="10 minutes", overlap="allow"
    )
    first = next_of(schedule)
    for _ in range(20):
        due = Schedule.objects.get().due_at
        assert due is not None
        tick_due(due)
    ticks = Tick.objects.order_by("number").values_list("moment", "outcome")
    assert list(ticks) == [(first + timedelta(minutes=number), "started") for number in range(20)]
