"""The migration operation that partitions new tables."""

# ruff: noqa: S608 - texts are made of names of the catalog; values are parameters

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import CursorWrapper
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable.conf import conf
from durable.store.partitions.layout import TABLES, PartitionError, drop_old, make, partitions, swap, use_schema


class Partition(Operation):
    """Partition the tables as `DURABLE["PARTITIONS"]` says, where they are empty; backwards, make them whole again.

    Tables with rows stay as they are: `manage.py durable partition` is for them. Does nothing on other databases.
    """

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Put tables in partitions in the place of empty ones."""
        self._make(app_label, schema_editor, conf.PARTITIONS)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Put tables without partitions in the place of empty ones. Raises PartitionError if they have rows."""
        if self._make(app_label, schema_editor, 0):
            return
        raise PartitionError(
            "The tables in partitions have rows, which migrations before do not know: "
            "run `manage.py durable partition --into 0` first."
        )

    def describe(self) -> str:
        return "Partition empty tables on PostgreSQL, if the settings say so"

    def _make(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, into: int) -> bool:
        """Return False if the tables have rows, and other partitions than these."""
        editor: Any = schema_editor
        alias = editor.connection.alias
        if editor.collect_sql or not router.allow_migrate(alias, app_label) or partitions(alias) in (None, into):
            return True
        with editor.connection.cursor() as cursor:
            use_schema(cursor)
            if _have_rows(cursor):
                return False
            for table in TABLES:
                make(cursor, table, into)
            swap(cursor, alias, has_rows=False)
            drop_old(cursor)
        return True


def _have_rows(cursor: CursorWrapper) -> bool:
    cursor.execute("SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM {table.name})" for table in TABLES))
    [(found,)] = cursor.fetchall()
    return bool(found)
