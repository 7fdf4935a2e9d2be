"""The migrations: what they create is what the code knows, and they can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django.plugin import DjangoDbBlocker

import durable.migrations
from durable.models import Entry, Run
from durable.store import store_for
from durable.store.routines import differences
from durable.store.routines.definitions import Function, Trigger
from durable.store.routines.operations import ROUTINES, CreateRoutines
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.store.making import an_entry, commit, started
from tests.support.databases import migrated

pytestmark = pytest.mark.slow

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


@pytest.fixture(params=["postgresql", "sqlite"])
def alias(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path: Path
) -> Iterator[str]:
    """A database that this test alone uses."""
    if request.param == "postgresql":
        server: EmbeddedPostgres = request.getfixturevalue("postgres_server")
        config = database_from(server.create_database("migrations_alone"))
    else:
        config = database_from(f"sqlite:///{tmp_path}/alone.sqlite3")
    with django_db_blocker.unblock(), migrated(ALIAS, config):
        yield ALIAS
        call_command("migrate", "durable", "zero", database=ALIAS, verbosity=0)


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


def test_they_need_no_others_to_be_applied_first(
    postgres_server: EmbeddedPostgres, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """The names of permissions are longer than the first migration of `auth` allows."""
    config = database_from(postgres_server.create_database("migrations_of_durable"))
    with django_db_blocker.unblock(), migrated(ALIAS, config, apps=["durable"]):
        assert differences(ALIAS) == []
        names = Permission.objects.using(ALIAS).filter(content_type__app_label="durable").values_list("name", flat=True)
        assert max(map(len, names)) > 50


def test_tables_of_before_the_first_release_are_refused_with_what_to_do(alias: str) -> None:
    recorder = MigrationRecorder(connections[alias])
    for name in MIGRATIONS:
        recorder.record_unapplied("durable", name)
    before = names()
    with pytest.raises(CommandError, match=r"earlier checkout of durable made.* delete the database, create it again"):
        call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == before
    call_command("migrate", "durable", database=alias, fake=True, verbosity=0)
    call_command("migrate", "durable", database=alias, verbosity=0)
    assert names() == before
    assert differences(alias) == []


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
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
