"""The kind of entry that records a compensation which the workflow's code has asked for.

On PostgreSQL the guard of entries knows the kinds, elsewhere a constraint does. The guard keeps its name: it refuses nothing
that it let pass before, so workers of the old version go on, and its trigger needs no lock on the table.
"""

from importlib import import_module
from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from durable.models.fields import NameField

KINDS = {
    "step": "step",
    "loop": "loop",
    "sleep": "sleep",
    "message": "message",
    "send": "send",
    "join": "join",
    "race": "race",
    "removed": "removed",
    "version_check": "version check",
    "rollback_checkpoint": "rollback checkpoint",
    "compensate": "compensate",
}
CONSTRAINT = "durable_entry_kind_is_known"

FUNCTIONS = {}

FUNCTIONS["durable_entry_guard_1"] = f"""
CREATE FUNCTION durable_entry_guard_1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text := CASE
    WHEN NEW.kind NOT IN ('step', 'loop', 'sleep', 'message', 'send', 'join', 'race', 'removed', 'version_check',
      'rollback_checkpoint', 'compensate') THEN '{CONSTRAINT}'
  END;
BEGIN
  IF broken IS NOT NULL THEN
    RAISE check_violation USING CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
      MESSAGE = format('row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken);
  END IF;
  RETURN NEW;
END $$
"""


def triggers() -> list[str]:
    """None: that of the guard stays as it is."""
    return []


class RemoveConstraint(migrations.RemoveConstraint):
    """Not on PostgreSQL, where the guard has taken the place of the constraint."""

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, *states)


class AddConstraint(migrations.AddConstraint):
    """Not on PostgreSQL, likewise."""

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, *states)


def know(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _guard_with(FUNCTIONS, schema_editor)


def forget(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    _guard_with(import_module("durable.migrations.0008_guards").FUNCTIONS, schema_editor)


def _guard_with(functions: dict[str, str], schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        guard = functions["durable_entry_guard_1"].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        schema_editor.execute(guard, params=None)


class Migration(migrations.Migration):
    dependencies = [("durable", "0008_guards")]

    operations = [
        migrations.AlterField(
            model_name="entry", name="kind", field=NameField(choices=list(KINDS.items()), max_length=24)
        ),
        RemoveConstraint(model_name="entry", name=CONSTRAINT),
        AddConstraint(
            model_name="entry",
            constraint=models.CheckConstraint(condition=models.Q(("kind__in", list(KINDS))), name=CONSTRAINT),
        ),
        migrations.RunPython(know, forget),
    ]
