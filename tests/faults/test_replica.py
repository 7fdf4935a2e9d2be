"""Lists read from a standby that follows, lags, dies or is promoted; what decides reads the primary."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings as project
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from durable import Context, workflow
from durable.admin.run_admin import LISTS
from durable.inspection import reading
from durable.inspection.reading import ReplicaLostError, from_replica, read_alias
from durable.metrics.rows import RowsCollector
from durable.models import Run
from project.servers import EmbeddedPostgres
from tests.admin.pages import hidden
from tests.support.databases import Standby, alias_of

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True, databases=["default", "replica"]),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="a standby is PostgreSQL's"),
]
REPLICA = "replica"


@workflow(name="replica.noting")
def noting(ctx: Context) -> None:
    """Do nothing."""


@pytest.fixture(scope="module", autouse=True)
def server(django_db_setup: None, postgres_server: EmbeddedPostgres) -> Iterator[Standby]:
    """One standby for the module. Its alias is there before a test asks for its databases."""
    with Standby(postgres_server) as standby, alias_of(standby, REPLICA):
        yield standby


@pytest.fixture
def standby(server: Standby, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    """A standby that has caught up, as READ_DATABASE."""
    monkeypatch.setattr(reading, "_failed_until", 0.0)
    server.catch_up()
    settings.DURABLE = {**project.DURABLE, "READ_DATABASE": REPLICA}
    yield server
    connections[REPLICA].close()


@dataclass
class Staff:
    """An operator in the admin and over REST."""

    admin: Client
    standby: Standby

    def list(self) -> str:
        """The list of runs as the admin shows it."""
        answer = self.admin.get(reverse("admin:durable_run_changelist"))
        assert answer.status_code == 200, answer.content.decode()
        return answer.content.decode()

    def rest(self, **headers: str) -> Any:
        """The list of runs over REST."""
        answer = self.admin.get("/api/runs", headers=headers)
        assert answer.status_code == 200, answer.content
        return answer


@pytest.fixture
def staff(standby: Standby) -> Staff:
    """An operator, whom the standby knows, too."""
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    standby.catch_up()
    return Staff(client, standby)


def start(run_id: str) -> None:
    noting.using(id=run_id).start()


def ids(answer: Any) -> list[str]:
    return [each["id"] for each in answer.json()["results"]]


class TestLag:
    def test_a_list_says_how_old_it_is_and_a_page_shows_what_is(self, staff: Staff) -> None:
        start("before")
        staff.standby.catch_up()
        staff.standby.pause()
        try:
            start("after")
            staff.standby.receive()
            shown = staff.list()
            assert "before" in shown
            assert "after" not in shown
            assert "ago: read from the replica" in shown
            assert ids(answer := staff.rest()) == ["before"]
            assert float(answer["Durable-Age"]) > 0
            page = staff.admin.get(reverse("admin:durable_run_change", args=["after"])).content.decode()
            assert "after" in page
            assert "read from the replica" not in page
            assert staff.admin.get("/api/runs/after").status_code == 200
            fresh = staff.rest(**{"Cache-Control": "no-cache"})
            assert ids(fresh) == ["after", "before"]
            assert "Durable-Age" not in fresh
        finally:
            staff.standby.resume()
        assert ids(answer := staff.rest()) == ["after", "before"]
        assert float(answer["Durable-Age"]) == 0

    def test_the_list_after_an_act_shows_the_act(self, staff: Staff) -> None:
        start("held")
        staff.standby.catch_up()
        staff.standby.pause()
        try:
            verb = reverse("admin:durable_run_act", args=["held", "pause"])
            page = staff.admin.get(verb)
            assert "read from the replica" not in page.content.decode()
            assert staff.admin.post(verb, {**hidden(page), "reason": ""}).status_code == 302
            shown = staff.list()
            assert "read from the replica" not in shown
            assert ">paused<" in shown.lower().replace(" ", "")
            assert "read from the replica" in staff.list()
        finally:
            staff.standby.resume()
        assert Run.objects.get(pk="held").state == "paused"


class TestLoss:
    def test_the_primary_is_read_while_the_standby_is_away(
        self, staff: Staff, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start("here")
        staff.standby.stop("immediate")
        try:
            with caplog.at_level(logging.WARNING, "durable.inspection"):
                for _ in range(3):
                    shown = staff.list()
                    assert "here" in shown
                    assert "The read replica does not answer: this is read from the primary." in shown
            assert len([each for each in caplog.records if REPLICA in each.getMessage()]) == 1
        finally:
            staff.standby.start()
        monkeypatch.setattr(reading, "_failed_until", 0.0)
        staff.standby.catch_up()
        assert "ago: read from the replica" in staff.list()

    def test_one_that_ends_a_query_is_told_of_and_not_asked_again(self, standby: Standby) -> None:
        def ended_while_it_is_read() -> None:
            with from_replica():
                assert read_alias() == REPLICA
                list(Run.objects.using(read_alias()).all())
                standby.stop("immediate")
                list(Run.objects.using(read_alias()).all())

        try:
            with pytest.raises(ReplicaLostError, match="Try again: for 10 s the primary is read"):
                ended_while_it_is_read()
            with from_replica():
                assert read_alias() == "default"
                list(Run.objects.using(read_alias()).all())
        finally:
            standby.start()

    @pytest.mark.parametrize("surface", ["admin", "rest"])
    def test_a_conflict_with_recovery_is_a_request_to_try_again(
        self, staff: Staff, surface: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def conflicting(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if 'FROM "durable_run"' in sql:
                sql = "DO $$ BEGIN RAISE 'canceling statement due to conflict with recovery' USING ERRCODE = '40001'; END $$"
                params = None
            return execute(sql, params, many, context)

        with connections[REPLICA].execute_wrapper(conflicting):
            address = reverse("admin:durable_run_changelist") if surface == "admin" else "/api/runs"
            answer = staff.admin.get(address)
        assert answer.status_code == 503
        told = "Load the page again" if surface == "admin" else "replica-lost"
        assert told in answer.content.decode()
        assert staff.admin.get(address).status_code == 200


def test_one_that_does_not_follow_is_not_believed(
    standby: Standby, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A promoted standby has stopped to follow, and would show old rows as the newest."""
    connections[REPLICA].close()
    monkeypatch.setitem(connections[REPLICA].settings_dict, "HOST", connection.settings_dict["HOST"])
    with caplog.at_level(logging.WARNING, "durable.inspection"), from_replica() as found:
        assert found is not None
        assert found.is_instead
        assert read_alias() == "default"
    assert "was it promoted?" in caplog.text


@pytest.mark.slow
class TestEverything:
    """No list reads the primary's tables, or writes."""

    @pytest.fixture(autouse=True)
    def _runs(self, staff: Staff) -> None:
        for number in range(3):
            start(f"run-{number}")
        staff.standby.catch_up()

    @pytest.mark.parametrize("name", sorted(LISTS - {"names", "cause", "workflow"}))
    def test_pages(self, staff: Staff, name: str) -> None:
        with CaptureQueriesContext(connection) as primary:
            answer = staff.admin.get(reverse(f"admin:durable_run_{name}"))
        assert answer.status_code == 200
        assert "ago: read from the replica" in answer.content.decode()
        assert not of_durable(primary)

    def test_the_page_of_a_workflow_and_the_audit_log(self, staff: Staff) -> None:
        pages = [
            reverse("admin:durable_run_workflow", args=["replica.noting"]),
            reverse("admin:durable_operatoraction_changelist"),
            reverse("admin:app_list", args=["durable"]),
        ]
        for page in pages:
            with CaptureQueriesContext(connection) as primary:
                answer = staff.admin.get(page)
            assert answer.status_code == 200
            assert "ago: read from the replica" in answer.content.decode(), page
            assert not of_durable(primary), page

    @pytest.mark.parametrize(
        "path",
        [
            "runs",
            "causes",
            "queues",
            "workers",
            "running",
            "limits",
            "rates",
            "schedules",
            "counts",
            "operator-actions",
        ],
    )
    def test_rest(self, staff: Staff, path: str) -> None:
        with CaptureQueriesContext(connection) as primary:
            answer = staff.admin.get(f"/api/{path}")
        assert answer.status_code == 200
        assert float(answer["Durable-Age"]) == 0
        assert not of_durable(primary)

    @pytest.mark.parametrize("name", ["list", "causes", "queues", "workers", "running", "limits", "rates"])
    def test_the_command_line(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        with CaptureQueriesContext(connection) as primary:
            call_command("durable", name)
        assert "ago: read from the replica" in capsys.readouterr().err
        assert not of_durable(primary)

    def test_metrics(self) -> None:
        with CaptureQueriesContext(connection) as primary:
            found = {each.name: each for each in RowsCollector().collect()}
        assert {each.labels["state"]: each.value for each in found["durable_runs"].samples}["pending"] == 3
        assert not of_durable(primary)


def of_durable(queries: CaptureQueriesContext) -> list[str]:
    return [each["sql"] for each in queries.captured_queries if "durable_" in each["sql"]]
