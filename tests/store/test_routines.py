"""Functions and triggers that are not as the migrations made them are noticed, and made anew by `migrate`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.checks import CheckMessage, Tags, run_checks
from django.core.management import call_command
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

import durable.migrations
from durable.store.postgres import PostgresStore
from durable.store.routines import differences
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import an_entry, commit, started
from tests.support.locks import other_session

pytestmark = pytest.mark.slow

STATES = [path.stem for path in sorted(Path(str(durable.migrations.__file__)).parent.glob("0*.py"))]

BREAKS = {
    "an edited function": (
        (
            "CREATE OR REPLACE FUNCTION durable_complete_1(of_run text, with_fence bigint, at timestamptz, with_output text, "
            "witness text, witness_ordinal bigint) "
            "RETURNS text LANGUAGE plpgsql SET enable_seqscan TO off AS $$ BEGIN RETURN ''; END $$"
        ),
        "the function durable_complete_1 differs from the one in the migrations",
    ),
    "a function without its setting": (
        "ALTER FUNCTION durable_send_1 RESET ALL",
        "the function durable_send_1 differs from the one in the migrations",
    ),
    "a function that names its result otherwise": (
        (
            "DROP FUNCTION durable_send_1; CREATE FUNCTION durable_send_1(new_id text, to_run text, to_queue text, "
            "with_body text, at timestamptz, with_idempotency_id text, rise integer, "
            "OUT place bigint, OUT other text, OUT before text) LANGUAGE plpgsql AS $$ BEGIN place := 7; END $$"
        ),
        "the function durable_send_1 differs from the one in the migrations",
    ),
    "a missing function": ("DROP FUNCTION durable_complete_1", "the function durable_complete_1 is missing"),
    "another signature": (
        (
            "DROP FUNCTION durable_complete_1; CREATE FUNCTION durable_complete_1(of_run text) RETURNS text LANGUAGE sql "
            "AS $$ SELECT of_run $$"
        ),
        "the function durable_complete_1 is missing",
    ),
    "a missing trigger": (
        "DROP TRIGGER durable_renamed ON durable_run",
        "the trigger durable_renamed on durable_run is missing",
    ),
    "another trigger": (
        (
            "DROP TRIGGER durable_guard_4 ON durable_entry; CREATE TRIGGER durable_guard_4 BEFORE INSERT ON durable_entry "
            "FOR EACH ROW EXECUTE FUNCTION durable_entry_guard_4()"
        ),
        "the trigger durable_guard_4 on durable_entry differs from the one in the migrations",
    ),
    "a trigger that is off": (
        "ALTER TABLE durable_run DISABLE TRIGGER durable_gone",
        "the trigger durable_gone on durable_run is disabled",
    ),
}


@contextmanager
def at(settings: Any, alias: str = POSTGRES) -> Iterator[None]:
    """Inside, durable's database is the tests' own."""
    before, settings.DURABLE = getattr(settings, "DURABLE", {}), {"DATABASE": alias}
    yield
    settings.DURABLE = before


def execute(statement: str) -> None:
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute(statement)


def wrong() -> list[str]:
    return [str(each) for each in differences(POSTGRES)]


def found() -> list[CheckMessage]:
    return run_checks(tags=[Tags.database], databases=[POSTGRES])


@pytest.fixture
def whole(postgres_store: PostgresStore) -> Iterator[PostgresStore]:
    """The store, whose database is whole again afterwards."""
    yield postgres_store
    call_command("migrate", "durable", database=POSTGRES, verbosity=0)
    execute("DROP FUNCTION IF EXISTS durable_complete_1(text)")
    assert wrong() == []


@pytest.fixture(scope="class")
def going_back(postgres_alias: str, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The tests of the class leave the migrations where they are: from the newest on, each goes back by one."""
    with django_db_blocker.unblock():
        empty(postgres_alias)
        yield
        call_command("migrate", "durable", database=POSTGRES, verbosity=0)
        assert wrong() == []


@pytest.mark.usefixtures("going_back")
class TestStates:
    @pytest.mark.parametrize("state", STATES[::-1])
    def test_what_each_state_of_the_migrations_makes_is_as_it_should_be(self, state: str) -> None:
        call_command("migrate", "durable", state, database=POSTGRES, verbosity=0)
        assert wrong() == []


@pytest.mark.parametrize("name", BREAKS)
def test_what_differs_is_reported_and_migrate_restores_it(
    whole: PostgresStore, settings: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    statement, problem = BREAKS[name]
    execute(statement)
    with at(settings):
        [message] = [each for each in found() if each.id == "durable.W087"]
        assert problem in str(message.msg)
        assert "migrate durable" in str(message.hint)
        output = StringIO()
        with pytest.raises(SystemExit):
            call_command("durable", "doctor", stdout=output)
        assert re.search(rf"routines\s+problem\s+{problem}", output.getvalue())
        assert wrong() == [problem]
        call_command("migrate", "durable", database=POSTGRES, verbosity=0)
        assert wrong() == []
        assert [each for each in found() if each.id == "durable.W087"] == []
    assert "made anew" in caplog.text
    commit(whole, started(whole), entries=[an_entry()])


def test_what_operators_may_change_is_left_alone(whole: PostgresStore) -> None:
    execute("ALTER FUNCTION durable_complete_1 SET search_path TO public")
    execute("ALTER FUNCTION durable_complete_1 COST 7")
    assert wrong() == []


def test_missing_migrations_are_not_reported_as_missing_routines(whole: PostgresStore) -> None:
    call_command("migrate", "durable", "0001", database=POSTGRES, verbosity=0)
    execute("DROP FUNCTION IF EXISTS durable_complete_1")
    assert wrong() == []


def test_another_schema_is_as_good(whole: PostgresStore) -> None:
    with psycopg.connect(**other_session(POSTGRES), autocommit=True) as session:
        session.execute('ALTER SCHEMA public RENAME TO "our runs"')
    try:
        execute('SET search_path TO "our runs"')
        assert wrong() == []
    finally:
        with psycopg.connect(**other_session(POSTGRES), autocommit=True) as session:
            session.execute('ALTER SCHEMA "our runs" RENAME TO public')
        connections[POSTGRES].close()


def test_other_databases_have_none(sqlite_alias: str) -> None:
    assert differences(sqlite_alias) == []


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_the_server_is_asked_for_its_isolation_level(postgres_store: PostgresStore, settings: Any, level: str) -> None:
    database = connections[POSTGRES].settings_dict["NAME"]
    with at(settings):
        assert [each.id for each in found() if each.id == "durable.E011"] == []
        execute(f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = '{level}'")
        try:
            connections[POSTGRES].close()  # it is asked for at the beginning of a session
            [message] = [each for each in found() if each.id == "durable.E011"]
            assert level.upper() in str(message.msg)
            assert "ALTER ROLE" in str(message.hint)
            output = StringIO()
            with pytest.raises(SystemExit):
                call_command("durable", "doctor", stdout=output)
            assert re.search(r"isolation\s+problem", output.getvalue())
        finally:
            execute(f'ALTER DATABASE "{database}" RESET default_transaction_isolation')
            connections[POSTGRES].close()
