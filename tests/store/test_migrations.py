"""Migrations after the first ones: workers go on while they are applied to tables of millions of rows."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import OperationalError, connection, connections, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Value

from durable.models import Run
from durable.store.routines.operations import AddIndexConcurrently, LockTimeout
from tests.support.locks import other_session
from tests.support.waiting import eventually

FIRST = {"0001_tables", "0002_routines", "0003_permissions"}  # they make empty tables


def growing() -> set[str]:
    """The models with a row for each run, or for something of a run, by their lower-case names."""
    found = {"run", "operatoraction"}
    every = list(apps.get_app_config("durable").get_models())
    while True:
        more = {
            str(model._meta.model_name)
            for model in every
            for field in model._meta.concrete_fields
            if field.related_model is not None and str(field.related_model._meta.model_name) in found
        }
        if more <= found:
            return found
        found |= more


def refusals(migration: migrations.Migration) -> list[str]:
    """Return why the migration must not be applied to large tables that workers use."""
    operations = migration.operations
    are_concurrent = [isinstance(each, AddIndexConcurrently) for each in operations]
    found = [why for each in operations if (why := refusal(each))]
    if any(are_concurrent):
        if migration.atomic or not all(are_concurrent):
            found.append("an index is added concurrently in a migration of its own, with atomic = False")
    elif not isinstance(operations[0], LockTimeout):
        found.append("its first operation is not LockTimeout")
    return found


def refusal(operation: Operation) -> str:
    inner: Any = getattr(operation, "operation", operation)  # of OnOtherDatabases
    if isinstance(inner, migrations.RunSQL):
        return refusal_of_sql(inner.sql) or refusal_of_sql(inner.reverse_sql or "")
    if str(getattr(inner, "model_name", "")).lower() not in growing():
        return ""
    match inner:
        case AddIndexConcurrently():
            return ""
        case migrations.AddIndex():
            return f"AddIndex of {inner.index.name} keeps others from writing: AddIndexConcurrently does not"
        case migrations.AddConstraint() if inner is operation:
            return f"{inner.constraint.name} is checked for each row under a lock: add it by hand, NOT VALID"
        case migrations.AddField():
            field: Any = inner.field
            default = field.db_default
            if field.unique or field.db_index:
                return f"{inner.name} brings an index: add that concurrently"
            if not field.null and not field.has_db_default():
                return f"{inner.name} has neither NULL nor a default in the database"
            if field.has_db_default() and hasattr(default, "resolve_expression") and not isinstance(default, Value):
                return f"the default of {inner.name} is an expression, which may be computed for each row"
        case migrations.AlterField() if inner is operation:  # else PostgreSQL is left as it is: choices, for example
            return f"{inner.name} is altered, which may write each row: add another column"
    return ""


def refusal_of_sql(sql: Any) -> str:
    texts = [sql] if isinstance(sql, str) else [each if isinstance(each, str) else each[0] for each in sql]
    for text in texts:
        if re.search(r"\bCREATE\s+(UNIQUE\s+)?INDEX\b(?!\s+CONCURRENTLY)", text, re.I):
            return "its SQL creates an index that is not concurrent"
        tables = "|".join(f"durable_{each}" for each in growing())
        if re.search(rf'\b(UPDATE|DELETE\s+FROM|ALTER\s+TABLE)\s+(ONLY\s+)?"?({tables})\b', text, re.I):
            return "its SQL changes a large table"
    return ""


def test_later_migrations_let_workers_go_on() -> None:
    loader = MigrationLoader(None)
    later = {name: each for (app, name), each in loader.disk_migrations.items() if app == "durable"}
    assert later.keys() >= FIRST
    assert {name: why for name, each in later.items() if name not in FIRST and (why := refusals(each))} == {}


def test_growing_tables_are_those_of_runs() -> None:
    assert growing() >= {"run", "entry", "entrymetadata", "queuemessage", "failure", "runtag", "child", "logline"}
    assert not growing() & {"schedule", "limit", "cause", "rollup", "workerprocess"}


INDEX = models.Index(fields=["worker"], name="durable_run_tried")


def a_migration(*operations: Operation, atomic: bool = True) -> migrations.Migration:
    migration: Any = migrations.Migration("0004_tried", "durable")
    migration.operations, migration.atomic = list(operations), atomic
    found: migrations.Migration = migration
    return found


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (migrations.AddIndex("run", INDEX), "AddIndexConcurrently"),
        (migrations.AddField("run", "colour", models.TextField(null=True)), ""),
        (migrations.AddField("run", "colour", models.TextField(db_default="red")), ""),
        (migrations.AddField("run", "colour", models.TextField(default="red")), "default in the database"),
        (migrations.AddField("run", "colour", models.TextField(null=True, db_index=True)), "index"),
        (migrations.AddField("run", "drawn", models.FloatField(db_default=models.functions.Random())), "expression"),
        (migrations.AlterField("entry", "ordinal", models.TextField()), "another column"),
        (migrations.AlterField("schedule", "name", models.TextField()), ""),
        (migrations.AddConstraint("run", models.CheckConstraint(condition=models.Q(), name="c")), "NOT VALID"),
        (migrations.AddIndex("schedule", models.Index(fields=["name"], name="i")), ""),
        (migrations.RunSQL("CREATE UNIQUE INDEX i ON durable_run (id)"), "not concurrent"),
        (migrations.RunSQL("UPDATE durable_run SET worker = ''"), "large table"),
        (migrations.RunSQL("UPDATE durable_schedule SET paused = false"), ""),
    ],
)
def test_what_would_stop_workers_is_refused(operation: Operation, why: str) -> None:
    found = refusals(a_migration(LockTimeout(), operation))
    assert [why in each for each in found] == [True] * bool(why)


def test_waits_are_limited_and_concurrent_indexes_stand_alone() -> None:
    column, index = (
        migrations.AddField("run", "colour", models.TextField(null=True)),
        AddIndexConcurrently("run", INDEX),
    )
    assert refusals(a_migration(LockTimeout(), column)) == []
    assert refusals(a_migration(column)) == ["its first operation is not LockTimeout"]
    assert refusals(a_migration(index, atomic=False)) == []
    assert len(refusals(a_migration(index))) == len(refusals(a_migration(index, column, atomic=False))) == 1


def apply(migration: migrations.Migration, *, backwards: bool = False) -> None:
    """Apply the migration to the tests' database, as `migrate` does."""
    state = ProjectState.from_apps(apps)
    with connection.schema_editor(atomic=migration.atomic) as editor:
        (migration.unapply if backwards else migration.apply)(state, editor)


def is_there() -> bool:
    with connection.cursor() as cursor:
        return INDEX.name in connection.introspection.get_constraints(cursor, "durable_run")


@pytest.mark.django_db(transaction=True)
def test_an_index_is_added_and_dropped_on_each_database() -> None:
    migration = a_migration(AddIndexConcurrently("run", INDEX), atomic=False)
    apply(migration)
    try:
        assert is_there()
    finally:
        apply(migration, backwards=True)
    assert not is_there()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestBesideOthers:
    @pytest.fixture
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        connection.ensure_connection()
        with psycopg.connect(**other_session()) as found:
            yield found
            found.rollback()

    def test_runs_are_written_while_an_index_waits_for_a_transaction(self, session: psycopg.Connection[Any]) -> None:
        migration = a_migration(AddIndexConcurrently("run", INDEX), atomic=False)
        session.execute("UPDATE durable_run SET worker = ''")  # for which the index waits

        def build() -> None:
            try:
                apply(migration)
            finally:
                connections.close_all()

        def waits() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_progress_create_index WHERE lockers_total > 0")
                return bool(cursor.fetchone()[0])

        building = threading.Thread(target=build)
        building.start()
        try:
            eventually(waits)
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '20s'")
                assert Run.objects.update(worker="another") == 0
                cursor.execute("RESET lock_timeout")
        finally:
            session.rollback()
            building.join()
        assert is_there()
        apply(migration, backwards=True)

    def test_an_index_that_an_interrupted_migration_has_left_is_built_anew(self) -> None:
        migration = a_migration(AddIndexConcurrently("run", INDEX), atomic=False)
        apply(migration)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'durable_run_tried'::regclass")
            apply(migration)
            cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'durable_run_tried'::regclass")
            assert cursor.fetchone() == (True,)
        apply(migration, backwards=True)

    def test_a_migration_gives_up_its_place_in_the_queue_for_a_lock(self, session: psycopg.Connection[Any]) -> None:
        session.execute("SELECT count(*) FROM durable_run")  # a report of hours
        column = migrations.AddField("run", "colour", models.TextField(null=True))
        with pytest.raises(OperationalError, match="lock timeout"):
            apply(a_migration(LockTimeout(0.05), column))
        assert Run.objects.count() == 0
        with connection.cursor() as cursor:
            assert "colour" not in {
                each.name for each in connection.introspection.get_table_description(cursor, "durable_run")
            }
