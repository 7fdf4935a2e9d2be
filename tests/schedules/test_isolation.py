"""One schedule that a database refuses holds up no other: it alone is refused, and told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.db import connection, connections
from django.db.utils import Error
from django.utils import timezone

from durable import Context, Schedule, workflow
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.models import Run, Tick
from durable.operations.schedules.rows import rows
from durable.operations.schedules.tick import tick_due
from tests.support.hourly import hourly_half_an_hour_from

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

_OTHERS = ["a", "b", "d", "e"]


@workflow(name="tests.isolation.job")
def job(ctx: Context) -> None:
    return None


@pytest.fixture
def due() -> datetime:
    """Five schedules that are due; "c", in the middle, is to be refused."""
    rule = hourly_half_an_hour_from(timezone.now())
    for name in sorted([*_OTHERS, "c"]):
        Schedule.objects.create(name=name, workflow="tests.isolation.job", rule=rule, overlap="queue")
    found: datetime | None = rows().get(name="c").next_at
    assert found is not None
    return found


@pytest.fixture
def refusing_inserts() -> Iterator[None]:
    """A database that refuses the run of "c" and shows values of the row."""
    if connection.vendor == "sqlite":
        _execute(
            "CREATE TRIGGER tests_refusing BEFORE INSERT ON durable_run WHEN NEW.id LIKE 'c@%' "
            "BEGIN SELECT RAISE(ABORT, 'no run of c'); END"
        )
    else:
        _execute("ALTER TABLE durable_run ADD CONSTRAINT tests_refusing CHECK (id NOT LIKE 'c@%')")
    yield
    if connection.vendor == "sqlite":
        _execute("DROP TRIGGER tests_refusing")
    else:
        _execute("ALTER TABLE durable_run DROP CONSTRAINT tests_refusing")


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _started() -> list[str]:
    return sorted(each.split("@")[0] for each in Run.objects.values_list("id", flat=True))


def _refused(name: str = "c") -> str:
    tick = Tick.objects.get(schedule__name=name, outcome="refused")
    assert tick.run_id == ""
    return tick.why


def test_a_row_that_violates_a_constraint(due: datetime, refusing_inserts: None) -> None:
    assert tick_due(due) == 5
    assert _started() == _OTHERS
    why = _refused()
    assert why.startswith("IntegrityError: ")
    assert "\n" not in why
    assert "kwargs" not in why, "the values of the row are not shown"
    assert rows().get(name="c").next_at == due + timedelta(hours=1)
    assert tick_due(due) == 0


def test_a_tick_whose_number_is_taken(due: datetime) -> None:
    schedule = rows().get(name="c")
    Tick.objects.create(schedule=schedule, number=1, moment=due, outcome="started", decided_at=due)
    tick_due(due)
    assert _started() == _OTHERS
    assert _refused().startswith("IntegrityError: ")
    tick_due(due + timedelta(hours=1))
    assert Tick.objects.get(schedule=schedule, number=3).outcome == "started"


def test_a_number_that_the_column_cannot_hold(due: datetime) -> None:
    """Not even the refusal can be written: the schedule is put off by a moment, and the others go on."""
    rows().filter(name="c").update(tick_count=2**63 - 1)
    assert tick_due(due) == 5
    assert _started() == _OTHERS
    assert tick_due(due) == 0
    assert tick_due(due + timedelta(seconds=2)) == 1
    rows().filter(name="c").update(tick_count=0)
    assert tick_due(due + timedelta(seconds=4)) == 1
    assert _started() == ["a", "b", "c", "d", "e"]


def test_a_waiting_tick_that_the_database_refuses(due: datetime, refusing_inserts: None) -> None:
    schedule = rows().get(name="c")
    Tick.objects.create(schedule=schedule, number=1, moment=due, outcome="waiting", decided_at=due)
    rows().filter(name="c").update(waiting_at=due, waiting_number=1, tick_count=1, next_at=None, due_at=None)
    assert tick_due(due) == 5
    assert _started() == _OTHERS
    assert _refused().startswith("IntegrityError: ")
    found = rows().get(name="c")
    assert (found.waiting_at, found.waiting_number) == (None, None)
    assert tick_due(due) == 0


@pytest.mark.skipif(settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"), reason="a file has no connection")
def test_a_lost_connection_refuses_nothing(due: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    other = connections.create_connection(connection.alias)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
    finally:
        other.close()
    with suppress(Error):
        tick_due(due)
    tick_due(due)
    assert _started() == ["a", "b", "c", "d", "e"]
    assert set(Tick.objects.values_list("outcome", flat=True)) == {"started"}


def test_findings_tell_of_it(due: datetime, refusing_inserts: None) -> None:
    tick_due(due)
    Tick.objects.update(decided_at=timezone.now())
    titles = {each.kind: each.title for each in collect_findings(timezone.now(), worker_overview())}
    assert '"c"' in titles["tick_refused"]
