"""The rows of schedules as objects save them, and as the schedules that code declares become them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from durable import Context, Schedule, cron, every, workflow
from durable.conf import conf
from durable.core import registry
from durable.definitions import Workflow
from durable.models import Tick
from durable.operations.schedules import verbs
from durable.operations.schedules.rows import arguments_of, rows
from durable.operations.schedules.sync import differences, synchronise, synchronise_after_migrate
from durable.operations.schedules.tick import tick_due
from durable.schedules import RuleLike
from durable.testing import Harness

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


# -- the schedules that code declares become rows; operators' pauses and overrides survive, and nothing is lost


NIGHTLY = "tests.sync.nightly"


def function(ctx: Context, team: int = 0) -> list[Any]:
    return [team, ctx.scheduled_for]


@pytest.fixture
def declare() -> Iterator[Callable[[RuleLike | None], None]]:
    """Let the code of this process have the workflow, with this schedule; None: without one."""
    made: list[Workflow[Any, Any]] = []

    def declaring(rule: RuleLike | None, name: str = NIGHTLY) -> None:
        forget()
        made.append(workflow(name=name, schedule=rule)(function))

    def forget() -> None:
        while made:
            registry.registry.unregister(made.pop())

    yield declaring
    forget()


def row() -> Schedule:
    return Schedule.objects.get(name=NIGHTLY)


def synced() -> list[str]:
    return [
        f"{each.change} {','.join(each.fields)}".strip() for each in synchronise() if each.name.startswith("tests.")
    ]


def test_a_declared_schedule_becomes_a_row(declare: Any) -> None:
    declare(cron("30 2 * * *", zone="Europe/Berlin", overlap="queue", window="12 hours", jitter="1 min", args=[7]))
    assert synced() == ["new"]
    found = row()
    assert (found.workflow, found.rule, found.zone, found.origin) == (NIGHTLY, "30 2 * * *", "Europe/Berlin", "code")
    assert (found.overlap, found.window, found.jitter) == ("queue", timedelta(hours=12), timedelta(minutes=1))
    assert arguments_of(found) == ([7], {})
    assert found.next_at is not None
    assert synced() == []


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        (cron("0 3 * * *"), "rule"),
        (cron("30 2 * * *", zone="Asia/Tokyo"), "zone"),
        (cron("30 2 * * *", overlap="allow"), "overlap"),
        (cron("30 2 * * *", catch_up="none"), "catch_up"),
        (cron("30 2 * * *", window="1 hour"), "window"),
        (cron("30 2 * * *", jitter="1 min"), "jitter"),
        (cron("30 2 * * *", args=[8]), "arguments"),
        (cron("30 2 * * *", kwargs={"team": 8}), "arguments"),
    ],
)
def test_each_change_of_the_code_is_noticed_and_written(declare: Any, rule: RuleLike, fields: str) -> None:
    declare(cron("30 2 * * *"))
    synced()
    declare(rule)
    assert [each.fields for each in differences() if each.name == NIGHTLY] == [(fields,)]
    assert synced() == [f"changed {fields}"]
    assert [each for each in differences() if each.name == NIGHTLY] == []


def test_an_unchanged_rule_keeps_its_next_moment(declare: Any) -> None:
    declare(cron("30 2 * * *"))
    with Harness(datetime(2026, 1, 1, 12, tzinfo=UTC)):
        synced()
    before = row().next_at
    declare(cron("30 2 * * *", overlap="allow"))
    synced()
    assert row().next_at == before


def test_a_schedule_that_the_code_no_longer_has_is_paused_and_kept(declare: Any) -> None:
    declare("every 1 hour")
    synced()
    declare(None)
    assert synced() == ["gone"]
    assert (row().paused, row().due_at) == (True, None)
    assert row().gone_at is not None
    assert synced() == []
    declare("every 1 hour")
    assert synced() == ["back"]
    assert (row().paused, row().gone_at) == (False, None)
    assert row().due_at is not None


def test_a_renamed_workflow_leaves_its_schedule_behind(declare: Any) -> None:
    declare("every 1 hour")
    synced()
    declare("every 1 hour", name="tests.sync.renamed")
    assert synced() == ["new", "gone"]
    assert row().paused
    assert not Schedule.objects.get(name="tests.sync.renamed").paused


def test_an_operators_pause_survives_the_way_back(declare: Any) -> None:
    declare("every 1 hour")
    synced()
    found = row()
    found.paused, found.pause_reason = True, "month end"
    found.save()
    declare(None)
    synced()
    declare("every 1 hour")
    synced()
    assert (row().paused, row().pause_reason) == (True, "month end")


def test_an_override_survives_deploys_and_the_code_goes_on_below_it(declare: Any) -> None:
    declare(cron("30 2 * * *", zone="Europe/Berlin"))
    synced()
    found = row()
    found.override_rule, found.override_zone = "0 5 * * *", "Asia/Tokyo"
    found.save()
    declare(cron("0 3 * * *", zone="UTC"))
    assert synced() == ["changed rule,zone"]
    assert (row().rules.text, row().zone_in_force, row().rule) == ("0 5 * * *", "Asia/Tokyo", "0 3 * * *")


def test_a_name_that_operators_took_is_left_to_them(declare: Any) -> None:
    Schedule.objects.create(name=NIGHTLY, workflow="shop.fulfil", rule="every 2 hours")
    declare("every 1 hour")
    assert synced() == ["taken"]
    assert (row().rule, row().origin, row().paused) == ("every 2 hours", "admin", False)


def test_a_harness_ticks_what_it_has_synchronised(declare: Any) -> None:
    declare(every("6 hours", args=[7]))
    synced()
    with Harness(datetime(2020, 1, 1, 1, tzinfo=UTC)) as h:
        synced()
        h.advance("5 hours")
        h.settle()
        assert h.peek(f"{NIGHTLY}@2020-01-01T06:00:00Z").output == [7, datetime(2020, 1, 1, 6, tzinfo=UTC)]


def test_a_harness_ticks_nothing_else(declare: Any) -> None:
    declare("every 1 hour")
    synced()
    with Harness() as h:
        h.advance("3 hours")
        h.settle()
    assert row().tick_count == 0


def test_it_is_done_after_migrate_for_what_was_discovered(declare: Any) -> None:
    declare("every 1 hour")  # by a test, which no other process imports
    synchronise_after_migrate(apps.get_app_config("durable"), conf.DATABASE)
    assert not Schedule.objects.filter(name=NIGHTLY).exists()
    synchronise_after_migrate(apps.get_app_config("durable"), "another")


def test_it_is_not_done_without_the_table(declare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declare("every 1 hour")
    monkeypatch.setattr("durable.operations.schedules.sync._TABLE", "durable_not_there")
    assert connection.introspection.table_names()
    synchronise_after_migrate(apps.get_app_config("durable"), conf.DATABASE)


@pytest.mark.parametrize(
    ("schedule", "error"),
    [("every now", ValueError), (7, TypeError), (every("1 hour", args=[1, 2]), TypeError)],
)
def test_a_decorator_refuses_what_could_never_tick(schedule: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        workflow(name="tests.sync.wrong", schedule=schedule)(function)
    with pytest.raises(registry.UnknownWorkflowError):
        registry.get("tests.sync.wrong")


def test_a_workflow_whose_name_makes_no_ids_cannot_have_a_schedule() -> None:
    with pytest.raises(ValueError, match="a schedule's name"):
        workflow(name="a/b", schedule="every 1 hour")(function)
