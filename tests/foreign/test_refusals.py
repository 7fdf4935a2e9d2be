"""Settings and databases with which durable would not work are refused where a project meets them first."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connections

from durable.checks import database
from durable.conf import conf
from durable.inspection.database import cached_tables
from durable.management.commands import durable_worker
from tests.foreign.conftest import Command

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

STARTS = [["check"], ["migrate"], ["durable_worker", "default"]]
CACHALOT = """
INSTALLED_APPS = [*INSTALLED_APPS, "cachalot"]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
"""
WRAPPER = """
from django.db.backends.signals import connection_created

class Rows:
    def __init__(self):
        self.known = {}

    def __call__(self, execute, sql, params, many, context):
        if not sql.startswith("SELECT") or '"durable_' not in sql:
            return execute(sql, params, many, context)
        rows = self.known.get((sql, str(params)))
        if rows is None:
            execute(sql, params, many, context)
            rows = self.known[sql, str(params)] = context["cursor"].cursor.fetchall()
        if not rows:
            return None
        values = ", ".join("(" + ", ".join(["%s"] * len(row)) + ")" for row in rows)
        return execute(f"VALUES {values}", [each for row in rows for each in row], False, context)


def cache(connection, **_):
    connection.execute_wrappers.append(Rows())

connection_created.connect(cache, weak=False)
"""


@pytest.mark.parametrize("start", STARTS, ids=lambda each: each[0])
def test_naive_times_are_refused(command: Command, start: list[str]) -> None:
    done = command("USE_TZ = False", *start)
    assert done.returncode != 0
    assert "durable.E018" in done.stderr
    assert "USE_TZ = True" in done.stderr
    assert "On PostgreSQL the times that your own models have stored stay the moments that they are" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("start", STARTS, ids=lambda each: each[0])
def test_a_database_that_is_neither_postgresql_nor_sqlite_is_refused(command: Command, start: list[str]) -> None:
    done = command('DATABASES = {"default": {"ENGINE": "tests.foreign.mariadb", "NAME": ":memory:"}}', *start)
    assert done.returncode != 0
    assert "durable.E019" in done.stderr
    assert "MariaDB" in done.stderr
    assert "PostgreSQL" in done.stderr
    assert "SQLite" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_of_the_project_s_own_may_be_any(command: Command) -> None:
    other = 'DATABASES = {**DATABASES, "legacy": {"ENGINE": "tests.foreign.mariadb", "NAME": ":memory:"}}'
    done = command(other, "check")
    assert "durable.E019" not in done.stderr


def test_cachalot_is_told_to_leave_durable_s_tables_alone(command: Command) -> None:
    done = command(CACHALOT, "check")
    assert done.returncode != 0
    assert "durable.E017" in done.stderr
    assert 'CACHALOT_UNCACHABLE_APPS = ["durable"]' in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        'CACHALOT_UNCACHABLE_APPS = ["durable"]',
        'CACHALOT_ONLY_CACHABLE_APPS = ["shop"]',
    ],
)
def test_cachalot_that_leaves_durable_s_tables_alone_is_welcome(command: Command, settings: str) -> None:
    done = command(f"{CACHALOT}\n{settings}", "check", "--database", "default")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", [["check", "--database", "default"], *STARTS[1:]], ids=lambda each: each[0])
def test_any_cache_before_durable_s_tables_is_found_by_reading_twice(command: Command, start: list[str]) -> None:
    done = command(WRAPPER, *start)
    assert done.returncode != 0
    assert "durable_run" in done.stderr
    assert "cache" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_cache_is_found_where_there_is_none() -> None:
    assert cached_tables() == []


@pytest.mark.postgres
class TestOldServers:
    @pytest.fixture(autouse=True)
    def old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that gives its version as 14.12; there is only one to connect to."""
        connections[conf.DATABASE].ensure_connection()
        monkeypatch.setitem(vars(connections[conf.DATABASE]), "pg_version", 140012)

    def test_the_check_says_which_version_was_found(self) -> None:
        (message,) = database.check_server_version(databases=[conf.DATABASE])
        assert message.id == "durable.E022"
        assert "14.12" in message.msg
        assert "15" in f"{message.msg} {message.hint}"

    def test_the_worker_does_not_start(self) -> None:
        with pytest.raises(CommandError, match=r"14\.12"):
            durable_worker.Command()._refuse_unsuitable_database()

    def test_migrate_is_refused(self) -> None:
        with pytest.raises(SystemCheckError, match=r"14\.12"):
            call_command("migrate", "durable", skip_checks=False, verbosity=0)
