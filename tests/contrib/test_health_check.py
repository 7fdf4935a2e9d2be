"""What django-health-check says of a project's database, Redis, workers and due runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone
from health_check.base import HealthCheck
from health_check.exceptions import HealthCheckException, ServiceUnavailable, ServiceWarning
from health_check.views import HealthCheckView
from time_machine import TimeMachineFixture

from durable import marks
from durable.contrib.health_check import DurableDueRuns, DurableMark, DurableRedis, DurableTables, DurableWorkers
from durable.models.workers import DatabaseMark
from durable.notifier import redis_clients
from durable.operations.holds import pause_queue
from durable.store import store_for
from project.servers import EmbeddedRedis
from tests.support.rows import rows
from tests.support.runs import new_runs
from tests.support.worker import a_worker

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("unlogged", "no_outages", "redis_connection"),
]

CHECKS = [
    "durable.contrib.health_check.DurableTables",
    "durable.contrib.health_check.DurableMark",
    "durable.contrib.health_check.DurableRedis",
    ("durable.contrib.health_check.DurableWorkers", {"queues": ["default"]}),
    ("durable.contrib.health_check.DurableDueRuns", {"longest": timedelta(minutes=1)}),
]
urlpatterns = [path("health/", HealthCheckView.as_view(checks=CHECKS))]


def failure(check: HealthCheck) -> HealthCheckException | None:
    try:
        check.run()
    except HealthCheckException as error:
        return error
    return None


@override_settings(ROOT_URLCONF=__name__)
def test_the_view_answers_with_each_check() -> None:
    a_worker(queues=["default"])
    answer = Client().get("/health/?format=json")
    assert (answer.status_code, json.loads(answer.content)) == (
        200,
        {
            "DurableTables()": "OK",
            "DurableMark()": "OK",
            "DurableRedis()": "OK",
            "DurableWorkers(queues=['default'])": "OK",
            "DurableDueRuns(longest=datetime.timedelta(seconds=60))": "OK",
        },
    )


@override_settings(ROOT_URLCONF=__name__)
def test_a_failing_check_fails_the_view() -> None:
    answer = Client().get("/health/?format=json")
    assert answer.status_code == 500
    said = json.loads(answer.content)["DurableWorkers(queues=['default'])"]
    assert said == 'Unavailable: no worker serves "default": start python manage.py durable_worker default'


@pytest.mark.postgres
@override_settings(ROOT_URLCONF=__name__)
def test_the_threads_of_checks_leave_no_connections_open() -> None:
    def sessions() -> list[tuple[Any, ...]]:
        return rows("SELECT pid FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid")

    before = sessions()
    Client().get("/health/?format=json")
    assert sessions() == before


@pytest.fixture
def missing_migration() -> Iterator[None]:
    """The newest migration is not recorded as applied."""
    found = MigrationRecorder(connection).migration_qs.filter(app="durable").order_by("-name")
    newest = found.values_list("name", flat=True)[0]
    found.filter(name=newest).delete()
    yield
    MigrationRecorder(connection).record_applied("durable", newest)


def test_tables_that_are_not_migrated(missing_migration: None) -> None:
    error = failure(DurableTables())
    assert isinstance(error, ServiceUnavailable)
    assert error.message == "1 migrations are missing: run manage.py migrate durable --database default"


@pytest.mark.postgres
def test_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        away.setitem(connection.settings_dict, "PORT", 1)
        found = [failure(check) for check in (DurableTables(), DurableRedis(), DurableWorkers(), DurableDueRuns())]
    for error in found:
        assert isinstance(error, ServiceUnavailable)
        assert error.message == "durable's database does not answer: OperationalError"


class TestMark:
    def test_a_database_that_went_back_fails_until_it_is_decided(self, settings: Any, tmp_path: Path) -> None:
        settings.DURABLE = {**settings.DURABLE, "MARK": str(tmp_path / "mark.json")}
        DatabaseMark.objects.all().delete()
        marks.forget()
        assert failure(DurableMark()) is None
        for _ in range(3):
            marks.keep("a sweep")
            DatabaseMark.objects.update(written_at=timezone.now() - timedelta(hours=1))
        assert failure(DurableMark()) is None
        DatabaseMark.objects.update(counter=0, token="old")
        found = failure(DurableMark())
        assert isinstance(found, ServiceUnavailable)
        assert "went back in time: no run is claimed until it is decided with `manage.py durable restored`" in str(
            found
        )
        assert str(tmp_path) not in str(found)
        DatabaseMark.objects.update(generation=9, holding_since=timezone.now())
        found = failure(DurableMark())
        assert isinstance(found, ServiceWarning)
        DatabaseMark.objects.all().delete()
        marks.forget()


class TestRedis:
    def test_one_that_does_not_answer_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_clients, "SOCKET_TIMEOUT", 1.0)
        with EmbeddedRedis() as server:
            queues = {"default": {"URL": server.url, "SERIALIZER": "json"}}
            with override_settings(RQ_QUEUES=queues):
                assert failure(DurableRedis()) is None
                server.stop("kill")
                error = failure(DurableRedis())
        assert isinstance(error, ServiceWarning)
        assert error.message == "Redis does not answer (ConnectionError); this server's log says more"

    @override_settings(DURABLE={"REDIS": False}, RQ_QUEUES={})
    def test_without_redis_there_is_nothing_to_reach(self) -> None:
        assert failure(DurableRedis()) is None


class TestWorkers:
    def test_each_queue_that_has_runs_needs_a_live_worker(self) -> None:
        new_runs(store_for("default"), queue="low")
        a_worker("here", queues=["default", "high"])
        a_worker("dead", queues=["low"], last_seen_at=timezone.now() - timedelta(hours=1))
        error = failure(DurableWorkers())
        assert isinstance(error, ServiceUnavailable)
        assert '"low"' in error.message
        assert '"high"' not in error.message
        a_worker("there", queues=["low"])
        assert failure(DurableWorkers(queues=["low", "high"])) is None

    def test_a_queue_that_nobody_knows_has_no_worker(self) -> None:
        error = failure(DurableWorkers(queues=["of-nobody"]))
        assert error is not None
        assert error.message.startswith('no worker serves "of-nobody"')


class TestDueRuns:
    def test_the_longest_due_run_decides(self, time_machine: TimeMachineFixture) -> None:
        now = timezone.now()
        time_machine.move_to(now, tick=False)  # lest it says "6 m 1 s"
        new_runs(store_for("default"), wake_at=now - timedelta(minutes=4))
        assert failure(DurableDueRuns()) is None
        new_runs(store_for("default"), queue="high", wake_at=now - timedelta(minutes=6))
        error = failure(DurableDueRuns())
        assert isinstance(error, ServiceUnavailable)
        assert error.message == 'a run of the queue "high" has been due for 6 m: it needs more workers'
        assert failure(DurableDueRuns(longest=timedelta(minutes=10))) is None

    def test_runs_of_a_paused_queue_are_not_late(self) -> None:
        new_runs(store_for("default"), queue="high", wake_at=timezone.now() - timedelta(hours=1))
        pause_queue("high")
        assert failure(DurableDueRuns()) is None
