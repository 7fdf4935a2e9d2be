"""Lists, searches and pages end when one of their statements takes too long, and say so: on every surface."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test import Client
from pytest_django import Settings

from durable.checks.configuration import check_settings
from durable.inspection.reading import StatementTimeoutError, reading
from tests.admin.conftest import OPERATOR

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the limit is PostgreSQL's"),
]


def shown(setting: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {setting}")
        [(value,)] = cursor.fetchall()
    return str(value)


def limit() -> str:
    return shown("statement_timeout")


class TestTheLimit:
    def test_it_holds_inside_alone(self, settings: Settings) -> None:
        settings.DURABLE = {**settings.DURABLE, "STATEMENT_TIMEOUT": 7}
        before = limit()
        with reading():
            assert limit() == "7s"
            with reading():
                assert limit() == "7s"
            assert limit() == "7s"
        assert limit() == before  # also inside of a transaction, in which this test is

    def test_after_an_error_too(self, settings: Settings) -> None:
        before = limit()
        with pytest.raises(KeyError), reading():
            raise KeyError
        assert limit() == before

    def test_a_shorter_one_stays(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '900ms'")
            with reading():
                assert limit() == "900ms"

    @pytest.mark.parametrize("before", ["on", "off"])
    def test_statements_are_not_compiled_inside(self, before: str) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL jit = {before}")
            with reading():
                assert shown("jit") == "off"
                with reading():
                    assert shown("jit") == "off"
                assert shown("jit") == "off"
            assert shown("jit") == before

    @pytest.mark.parametrize("seconds", [0, 0.0])
    def test_none(self, settings: Settings, seconds: float) -> None:
        settings.DURABLE = {**settings.DURABLE, "STATEMENT_TIMEOUT": seconds}
        assert check_settings() == []
        before = limit()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL jit = on")
            with reading():
                assert limit() == before
                assert shown("jit") == "off"

    def test_a_statement_that_takes_longer_is_ended(self, settings: Settings) -> None:
        settings.DURABLE = {**settings.DURABLE, "STATEMENT_TIMEOUT": 0.05}
        with (
            pytest.raises(StatementTimeoutError, match=r"longer than 0\.05 s.*STATEMENT_TIMEOUT") as caught,
            reading(),
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT pg_sleep(600)")
        assert caught.value.seconds == 0.05

    def test_other_errors_stay_what_they_are(self) -> None:
        with pytest.raises(OperationalError, match="of its own"), reading():
            raise OperationalError("of its own")


@pytest.fixture
def blocked(settings: Settings, log_in: Callable[..., Client]) -> Iterator[Client]:
    """A client of a site whose runs cannot be read: another session has locked their table."""
    client = log_in(*OPERATOR)
    settings.DURABLE = {**settings.DURABLE, "STATEMENT_TIMEOUT": 0.05}
    parameters = connection.get_connection_params()
    keys = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{key: parameters[key] for key in keys if key in parameters}) as other:
        other.execute("LOCK TABLE durable_run, durable_operatoraction IN ACCESS EXCLUSIVE MODE")
        yield client
        other.rollback()


@pytest.mark.parametrize(
    "address",
    [
        *("run/", "run/?q=no+answer", "run/?live=1", "run/overview/", "run/x/change/", "run/x/live/"),
        *("run/x/step/?at=a", "operatoraction/", "operatoraction/?q=x"),
    ],
)
def test_a_page_of_the_admin(blocked: Client, address: str) -> None:
    answer = blocked.get(f"/admin/durable/{address}")
    assert answer.status_code == 503
    assert "The database took longer than 0.05 s" in answer.content.decode()


def test_the_overview_inside_of_a_page_of_django(blocked: Client) -> None:
    answer = blocked.get("/admin/durable/")
    assert answer.status_code == 200
    assert "The database took longer than 0.05 s" in answer.content.decode()


@pytest.mark.parametrize(
    "address",
    [
        *("runs", "runs?error=no", "runs/x", "runs/x/entries", "runs/x/tree", "runs/x/replay-plan?location=a"),
        "operator-actions",
    ],
)
def test_rest(blocked: Client, address: str) -> None:
    answer = blocked.get(f"/api/{address}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
    assert answer.headers["Retry-After"] == "60"
    problem: Any = answer.json()
    assert problem["code"] == "statement-timeout"
    assert "STATEMENT_TIMEOUT" in problem["detail"]


@pytest.mark.usefixtures("blocked")
@pytest.mark.parametrize(
    "arguments",
    [["list"], ["list", "--error", "no"], ["list", "text"], ["show", "x"], ["why", "x"], ["replay", "x", "a"]],
)
def test_the_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("durable", *arguments)
    assert ended.value.code == 4
    assert "longer than 0.05 s" in capsys.readouterr().err
