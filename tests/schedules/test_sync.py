"""The schedules that code declares become rows; operators' pauses and overrides survive, and nothing is lost."""

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
from durable.operations.schedules.rows import arguments_of
from durable.operations.schedules.sync import differences, synchronise, synchronise_after_migrate
from durable.schedules import RuleLike
from durable.testing import Harness

pytestmark = pytest.mark.django_db

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
