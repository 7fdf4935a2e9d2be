"""Migrations, functions and triggers: what they create is what the code knows, and what differs is made anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.core.checks import CheckMessage, Tags, run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django.plugin import DjangoDbBlocker

import durable.migrations
from durable.models import Entry, Run
from durable.store import store_for
from durable.store.postgres import PostgresStore
from durable.store.routines import differences
from durable.store.routines.operations import ROUTINES, CreateRoutines, Function, Trigger
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.conftest import POSTGRES
from tests.store.emptying import empty
from tests.store.making import an_entry, commit, started
from tests.support.databases import migrated
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
    applied = MigrationRecorder(connections[POSTGRES]).applied_migrations()
    if wrong() or not {("durable", name) for name in MIGRATIONS} <= applied.keys():
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


# -- the migrations: what they create is what the code knows, and they can be taken back


ALIAS = "migrations_alone"

#: The names of all tables, indexes, functions and triggers whose names begin with durable.
NAMES = {
    "postgresql": (
        "SELECT relkind, relname FROM pg_class WHERE relname LIKE 'durable%' "
        "UNION ALL SELECT 'f', proname FROM pg_proc WHERE proname LIKE 'durable%' "
        "UNION ALL SELECT 't', tgname FROM pg_trigger WHERE tgname LIKE 'durable%' "
        "UNION ALL SELECT 'c', conname FROM pg_constraint WHERE conname LIKE 'durable%'"
    ),
    "sqlite": "SELECT type, name FROM sqlite_master WHERE tbl_name LIKE 'durable%'",
}

#: The names of this version's migrations.
MIGRATIONS = sorted(each.name for each in iter_modules(durable.migrations.__path__))

LATER_GUARD = Function.of("""
CREATE FUNCTION durable_entry_guard_5() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$
""")
LATER_TRIGGER = Trigger.of(
    "CREATE TRIGGER durable_guard_5 BEFORE INSERT OR UPDATE ON durable_entry FOR EACH ROW "
    "EXECUTE FUNCTION durable_entry_guard_5()"
)
LATER_MIGRATION = """
from django.db import migrations
from durable.store.routines.operations import CreateRoutines, DropRoutines, OnOtherDatabases

class Migration(migrations.Migration):
    dependencies = [("durable", "{newest}")]
    operations = [
        DropRoutines(["durable_entry_guard_4", "durable_guard_4 on durable_entry"]),
        CreateRoutines(["durable_entry_guard_5", "durable_guard_5 on durable_entry"]),
        OnOtherDatabases(migrations.RemoveConstraint("entry", "durable_entry_kind_is_known")),
    ]
"""


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def _alone(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A database that the tests below alone use, with durable's migrations and those that they need."""
    if request.param == "postgresql":
        server: EmbeddedPostgres = request.getfixturevalue("postgres_server")
        config = database_from(server.create_database(ALIAS))
    else:
        config = database_from(f"sqlite:///{tmp_path_factory.mktemp('alone')}/alone.sqlite3")
    with django_db_blocker.unblock(), migrated(ALIAS, config, apps=["durable"]):
        yield ALIAS


@pytest.fixture
def alias(_alone: str, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The database of the tests below. Each leaves its tables as it has found them, and no rows."""
    with django_db_blocker.unblock():
        before = names()
        yield _alone
        empty(_alone)
        assert names() == before


def names() -> set[tuple[str, str]]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(NAMES[connections[ALIAS].vendor])
        return {(kind, name) for kind, name in cursor.fetchall()}


def test_every_function_and_trigger_is_created_by_one_migration() -> None:
    migrations = MigrationLoader(None).disk_migrations
    operations = [
        each for (app, _), migration in migrations.items() if app == "durable" for each in migration.operations
    ]
    created = [name for each in operations if isinstance(each, CreateRoutines) for name in each.names]
    assert sorted(created) == sorted(ROUTINES)


def test_they_can_be_taken_back_and_applied_again(alias: str) -> None:
    before = names()
    assert before
    call_command("migrate", "durable", "zero", database=alias, verbosity=0)
    assert names() == set()
    call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == before
    assert differences(alias) == []
    store = store_for(alias)
    commit(store, started(store), entries=[an_entry()])
    assert len(store.load("run")) == 1


@pytest.mark.parametrize("_alone", ["postgresql"], indirect=True)
def test_they_need_no_others_to_be_applied_first(alias: str) -> None:
    """The names of permissions are longer than the first migration of `auth` allows."""
    auth = {name for app, name in MigrationRecorder(connections[alias]).applied_migrations() if app == "auth"}
    assert auth < {name for app, name in MigrationLoader(None).disk_migrations if app == "auth"}
    assert differences(alias) == []
    names = Permission.objects.using(alias).filter(content_type__app_label="durable").values_list("name", flat=True)
    assert max(map(len, names)) > 50


def test_tables_of_before_the_first_release_are_refused_with_what_to_do(alias: str) -> None:
    recorder = MigrationRecorder(connections[alias])
    for name in MIGRATIONS:
        recorder.record_unapplied("durable", name)
    before = names()
    with pytest.raises(CommandError, match=r"earlier checkout of durable made.* Delete the database, create it again"):
        call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == before
    call_command("migrate", "durable", database=alias, fake=True, verbosity=0)
    call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == before
    assert differences(alias) == []


@pytest.mark.parametrize("_alone", ["postgresql"], indirect=True)
def test_a_later_version_changes_a_guard_under_a_new_name_and_this_version_leaves_it(
    alias: str, settings: Any, later_version: str
) -> None:
    before = names()
    settings.MIGRATION_MODULES = {"durable": later_version}
    call_command("migrate", "durable", database=alias, verbosity=0)
    later = names()
    assert {name for _, name in later - before} == {"durable_entry_guard_5", "durable_guard_5"}
    assert ("f", "durable_entry_guard_4") not in later
    assert differences(alias) == []
    store = store_for(alias)
    commit(store, started(store), entries=[an_entry()])
    assert Entry.objects.using(alias).update(kind="leap") == 1
    Run.objects.using(alias).all().delete()

    settings.MIGRATION_MODULES = {}
    assert differences(alias) == []
    call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == later

    settings.MIGRATION_MODULES = {"durable": later_version}
    call_command("migrate", "durable", MIGRATIONS[-1], database=alias, verbosity=0)
    assert names() == before
    assert differences(alias) == []


@pytest.fixture
def later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with this version's migrations and one more, which changes the guard of entries."""
    for each in (LATER_GUARD, LATER_TRIGGER):
        monkeypatch.setitem(ROUTINES, each.name, each)
    package = tmp_path / "later_migrations"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in MIGRATIONS:
        same = (
            f"from importlib import import_module\nMigration = import_module('durable.migrations.{name}').Migration\n"
        )
        (package / f"{name}.py").write_text(same)
    (package / "9999_guard.py").write_text(LATER_MIGRATION.format(newest=MIGRATIONS[-1]))
    monkeypatch.syspath_prepend(tmp_path)
    return "later_migrations"
