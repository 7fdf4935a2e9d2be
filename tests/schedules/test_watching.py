"""What tells of late, missed and refused ticks: findings, the check, metrics and alerts."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from durable import Context, Schedule, workflow
from durable.alerts.conditions import look_for
from durable.checks.code import check_schedules
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.metrics.rows import RowsCollector
from durable.models import Tick
from durable.operations.schedules.sync import synchronise
from durable.operations.schedules.tick import tick_due
from tests.support.hourly import hourly_half_an_hour_from

pytestmark = [pytest.mark.django_db, pytest.mark.redis]


@workflow(name="tests.watching.job")
def job(ctx: Context) -> None:
    return None


def make(name: str, late_by: timedelta, **options: str) -> Schedule:
    now = timezone.now()
    columns = {"workflow": job.name, "rule": hourly_half_an_hour_from(now)} | options
    made = Schedule.objects.create(name=name, **columns)  # type: ignore[arg-type]  # texts
    moment = now - late_by
    Schedule.objects.filter(pk=made.pk).update(next_at=moment, due_at=moment)
    return made


@pytest.fixture
def late() -> datetime:
    """A schedule that no ticker has ticked, one whose ticks were missed, and one whose tick was refused."""
    make("missed", timedelta(hours=3), catch_up="none")
    make("refused", timedelta(seconds=90), workflow="tests.watching.gone")
    now = timezone.now()
    tick_due(now)
    make("late", timedelta(minutes=10))
    return now


def kinds() -> Iterator[tuple[str, str]]:
    for each in collect_findings(timezone.now(), worker_overview()):
        if each.kind.startswith(("schedule", "tick")):
            yield each.kind, each.title


def test_without_schedules_nothing_is_told() -> None:
    assert list(kinds()) == []
    assert look_for(frozenset({"schedule"}), timezone.now(), ()).conditions == []


def test_findings_name_the_schedules(late: datetime) -> None:
    found = dict(kinds())
    assert set(found) == {"schedule_late", "tick_refused", "tick_missed"}
    assert '"late"' in found["schedule_late"]
    assert '"refused"' in found["tick_refused"]
    assert '"missed"' in found["tick_missed"]


def test_metrics_count_them(late: datetime) -> None:
    samples = {
        (sample.name, sample.labels.get("outcome")): sample.value
        for metric in RowsCollector().collect()
        for sample in metric.samples
    }
    assert samples["durable_schedules_late", None] == 1
    assert samples["durable_ticks_last_hour", "refused"] == 1
    assert samples["durable_ticks_last_hour", "missed"] == Tick.objects.filter(outcome="missed").count() > 0
    assert samples["durable_ticks_last_hour", "skipped"] == 0


def test_alerts_tell_of_each(late: datetime) -> None:
    found = look_for(frozenset({"schedule"}), timezone.now(), ())
    assert [each.title for each in found.conditions] == [
        'The schedule "late" is late',
        'The schedule "missed" has missed its moment',
        'The schedule "refused" was refused its run',
    ]
    assert len({each.key for each in found.conditions}) == 3
    assert all(each.path for each in found.conditions)


def test_a_check_says_that_code_and_rows_differ() -> None:
    synchronise()
    assert check_schedules(databases=["default"]) == []
    Schedule.objects.create(name="renamed", workflow="tests.old", rule="0 0 * * *", origin="code")
    [warning] = check_schedules(databases=["default"])
    assert (warning.id, '"renamed" is no longer in the code' in warning.msg) == ("durable.W089", True)
    assert "durable schedules --sync" in (warning.hint or "")
    assert check_schedules(databases=None) == []
