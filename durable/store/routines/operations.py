"""Migration operations for PostgreSQL: functions and triggers, and changes of tables that workers use meanwhile.

On other databases those of functions, triggers and locks do nothing. The files `*.sql` beside this one have the
statements that create functions and triggers, with what each does: in plain SQL, for editors and for psql.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import CheckConstraint
from django.db.transaction import atomic

_STATEMENT: Final = re.compile(r"^CREATE (?:FUNCTION .*?^END \$\$|TRIGGER [^;]*);$", re.DOTALL | re.MULTILINE)
_FUNCTION: Final = re.compile(
    r"CREATE FUNCTION (?P<name>\w+)\((?P<parameters>[^)]*)\)(?P<result>.*?)LANGUAGE plpgsql(?P<settings>.*?)AS \$\$(?P<body>.*)\$\$",
    re.DOTALL,
)
_COLUMNS: Final = re.compile(r"RETURNS TABLE \((?P<columns>[^)]*)\)")
_SETTING: Final = re.compile(r"SET (\w+) TO (\w+)")
_TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .*? ON (\w+) ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function. `signature` has the types of its parameters, as to_regprocedure takes it.

    `names` are those of its parameters, then those of its result's columns.
    """

    name: str
    statement: str
    signature: str
    names: tuple[str, ...]
    body: str
    settings: frozenset[str]  # each as "name=value"

    @classmethod
    def of(cls, statement: str) -> Self:
        """Return the function that `CREATE FUNCTION ... LANGUAGE plpgsql ... AS $$ ... $$` creates."""
        found = _FUNCTION.search(statement)
        assert found is not None, statement
        parameters = [each.split() for each in found["parameters"].split(",") if each.strip()]
        columns = _COLUMNS.search(found["result"])
        returned = [each.split() for each in columns["columns"].split(",")] if columns else []
        types = ", ".join(each[-1] for each in parameters if each[0] != "OUT")
        return cls(
            name=found["name"],
            statement=statement.strip(),
            signature=f"{found['name']}({types})",
            names=(*(each[-2] for each in parameters), *(each[0] for each in returned)),
            body=found["body"],
            settings=frozenset(f"{name}={value}" for name, value in _SETTING.findall(found["settings"])),
        )

    @property
    def replacing(self) -> str:
        """Return the statement that creates it in the place of one that has the same signature."""
        return self.statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)

    @property
    def dropping(self) -> str:
        return f"DROP FUNCTION IF EXISTS {self.signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger. `name` is "trigger on table"."""

    name: str
    trigger: str
    table: str
    statement: str

    @classmethod
    def of(cls, statement: str) -> Self:
        """Return the trigger that `CREATE TRIGGER ... ON ...` creates."""
        found = _TRIGGER.search(statement)
        assert found is not None, statement
        trigger, table = found.groups()
        return cls(name=f"{trigger} on {table}", trigger=trigger, table=table, statement=statement.strip())

    @property
    def dropping(self) -> str:
        return f"DROP TRIGGER IF EXISTS {self.trigger} ON {self.table}"


Routine: TypeAlias = Function | Trigger


def read(file: str) -> tuple[Routine, ...]:
    """Return the functions and triggers of a file in this folder ("slots" for `slots.sql`), in their order."""
    text = Path(__file__).with_name(f"{file}.sql").read_text(encoding="utf-8")
    statements = (each.removesuffix(";") for each in _STATEMENT.findall(text))
    return tuple(Trigger.of(each) if each.startswith("CREATE TRIGGER") else Function.of(each) for each in statements)


#: The functions and triggers that replace constraints.
GUARDS: Final = read("guards")

#: All functions and triggers by name, in the order in which they can be created.
ROUTINES: Final[dict[str, Routine]] = {
    routine.name: routine
    for routines in (*map(read, ("functions", "keys", "slots", "rates", "ranks", "ending", "groups")), GUARDS)
    for routine in routines
}

#: The models whose check constraints and foreign keys the guards replace.
GUARDED: Final = ("Run", "Entry", "EntryMetadata")

#: By table, the foreign key that the guards replace: its column, the other table and that table's key.
REFERENCES: Final = {
    "durable_entry": ("run_id", "durable_run", "id"),
    "durable_entrymetadata": ("entry_id", "durable_entry", "id"),
}


#: Limits waits for locks in a transaction, in milliseconds.
LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '{}ms'"


class _OnPostgreSQL(Operation):
    """An operation that changes a PostgreSQL database, and no model."""

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState) -> None:
        if _concerns(app_label, schema_editor):
            self._apply(app_label, schema_editor, states[-1])

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState
    ) -> None:
        if _concerns(app_label, schema_editor):
            self._undo(app_label, schema_editor, states[-1])

    def _apply(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState, /) -> None:
        """Change the database. `state` is that of the models after the migration."""
        raise NotImplementedError

    def _undo(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState, /) -> None:
        """Do nothing, unless a subclass does."""


class _Routines(_OnPostgreSQL):
    """An operation on functions and triggers, given by name in the order in which they can be created."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def _create(self, _app_label: str, editor: BaseDatabaseSchemaEditor, _state: ProjectState) -> None:
        for name in self.names:
            editor.execute(ROUTINES[name].statement, params=None)

    def _drop(self, _app_label: str, editor: BaseDatabaseSchemaEditor, _state: ProjectState) -> None:
        for name in reversed(self.names):
            editor.execute(ROUTINES[name].dropping, params=None)


class CreateRoutines(_Routines):
    """Create functions and triggers; backwards, drop them."""

    _apply, _undo = _Routines._create, _Routines._drop

    def describe(self) -> str:
        return f"Create {len(self.names)} functions and triggers on PostgreSQL"


class DropRoutines(_Routines):
    """Drop functions and triggers; backwards, create them."""

    _apply, _undo = _Routines._drop, _Routines._create

    def describe(self) -> str:
        return f"Drop {len(self.names)} functions and triggers on PostgreSQL"


class DropGuardedConstraints(_OnPostgreSQL):
    """Drop the check constraints and foreign keys that guards replace; backwards, add them.

    The models keep their constraints: other databases have them.
    """

    def _apply(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        for model, constraint in self._checks(app_label, state):
            editor.remove_constraint(model, constraint)
        for table, name in _foreign_keys(editor):
            editor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')

    def _undo(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        for table, (column, other, key) in REFERENCES.items():
            editor.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {table}_{column}_fk FOREIGN KEY ({column}) "
                f"REFERENCES {other} ({key}) DEFERRABLE INITIALLY DEFERRED"
            )
        for model, constraint in self._checks(app_label, state):
            editor.add_constraint(model, constraint)

    def describe(self) -> str:
        return "Drop the constraints that guards replace on PostgreSQL"

    def _checks(self, app_label: str, state: ProjectState) -> list[tuple[Any, CheckConstraint]]:
        models = [state.apps.get_model(app_label, name) for name in GUARDED]
        return [
            (model, each) for model in models for each in model._meta.constraints if isinstance(each, CheckConstraint)
        ]


class OnOtherDatabases(Operation):
    """A change of a guarded constraint: in the models always, in the database only where guards do not replace it."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        self.operation.state_forwards(app_label, state)

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState) -> None:
        if schema_editor.connection.vendor != "postgresql":
            self.operation.database_forwards(app_label, schema_editor, *states)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            self.operation.database_backwards(app_label, schema_editor, *states)

    def describe(self) -> str:
        return f"{self.operation.describe()}, except on PostgreSQL"


class LockTimeout(_OnPostgreSQL):
    """Let no later operation of the migration wait for a lock for longer than this.

    Claims, commits and renewals of leases queue up behind a statement that waits for a table. After the timeout the
    migration has done nothing, and can be applied again. Backwards it is the last operation, and does nothing.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds

    def _apply(self, _app_label: str, editor: BaseDatabaseSchemaEditor, _state: ProjectState) -> None:
        editor.execute(LOCK_TIMEOUT.format(round(self.seconds * 1000)))

    def describe(self) -> str:
        return f"Wait for no lock on PostgreSQL for longer than {self.seconds:g} s"


class RoomForUpdates(_OnPostgreSQL):
    """Let the pages of a table keep room for new versions of their rows, so that an update touches no index.

    For a table that is still empty: pages that are full already stay so. Backwards the table goes.
    """

    def __init__(self, model: str, percent: int) -> None:
        self.model = model
        self.percent = percent

    def _apply(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        table = editor.quote_name(state.apps.get_model(app_label, self.model)._meta.db_table)
        editor.execute(f"ALTER TABLE {table} SET (fillfactor = {100 - self.percent})")

    def describe(self) -> str:
        return f"Keep {self.percent} % of each page of {self.model} free on PostgreSQL"


class AddIndexConcurrently(AddIndex):
    """Add an index without a lock that keeps others from writing; in a migration of its own, with `atomic = False`.

    Unlike Django's, it works on other databases too, replaces what an interrupted one has left, and builds the index of
    a table in partitions: one partition after the other, and then that of the table of them, under a short lock.
    """

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        editor: Any = schema_editor
        name = self.index.name
        if not (leaves := _partitions(editor, model._meta.db_table)):
            editor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"')
            editor.add_index(model, self.index, concurrently=True)
            return
        statement = str(self.index.create_sql(model, editor))
        named, on = f'INDEX "{name}" ON ', f'"{model._meta.db_table}" '
        own = {leaf: f"{name}_{leaf.rpartition('_p')[2]}" for leaf in leaves}
        editor.execute(f'DROP INDEX IF EXISTS "{name}"')  # with those of the partitions that belong to it
        for leaf, index in own.items():
            editor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{index}"')
            editor.execute(statement.replace(named + on, f'INDEX CONCURRENTLY "{index}" ON "{leaf}" '), params=None)
        with atomic(using=editor.connection.alias):
            editor.execute(LOCK_TIMEOUT.format(round(LockTimeout().seconds * 1000)))
            editor.execute(statement.replace(named, f"{named}ONLY "), params=None)
            for index in own.values():
                editor.execute(f'ALTER INDEX "{name}" ATTACH PARTITION "{index}"')

    def describe(self) -> str:
        return f"{super().describe()}, without a lock"


def created_by(operations: Iterable[Operation]) -> list[Routine]:
    """Return the functions and triggers that exist after these operations."""
    found: dict[str, Routine] = {}
    for each in operations:
        if isinstance(each, CreateRoutines):
            found |= {name: ROUTINES[name] for name in each.names}
        elif isinstance(each, DropRoutines):
            for name in each.names:
                del found[name]
    return list(found.values())


def _concerns(app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> bool:
    connection = schema_editor.connection
    return connection.vendor == "postgresql" and router.allow_migrate(connection.alias, app_label)


def _partitions(schema_editor: BaseDatabaseSchemaEditor, table: str) -> list[str]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = %s::regclass ORDER BY c.oid",
            [table],
        )
        return [name for (name,) in cursor.fetchall()]


def _foreign_keys(schema_editor: BaseDatabaseSchemaEditor) -> list[tuple[str, str]]:
    """Return table and name of the foreign keys that guards replace; the names are Django's."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'f' "
            "AND conrelid IN (SELECT to_regclass(name) FROM unnest(%s::text[]) AS each(name))",
            [list(REFERENCES)],
        )
        return list(cursor.fetchall())
