"""The renames of the project's migrations, applied or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from durable.core.renames import Rename
from durable.renames.operations import RenameStep

__all__ = ["every_rename", "expected_renames"]


def expected_renames(alias: str) -> list[Rename]:
    """Return the renames in force in the database, and those of migrations that are still to be applied, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import RenamedStep

    connection = connections[alias]
    found: list[Rename] = []
    if RenamedStep._meta.db_table in connection.introspection.table_names():
        rows = RenamedStep.objects.using(alias).order_by("id").values_list("workflow", "old", "new")
        found = [Rename(*each) for each in rows]
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return found + [each for each in _of(migration for migration, _ in plan) if each not in found]


def every_rename() -> list[Rename]:
    """Return the renames of all migrations of the project, in their order, applied or not. Asks no database."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    seen: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        seen.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return list(dict.fromkeys(_of(loader.graph.nodes[each] for each in seen)))


def _of(migrations: Iterable[Migration]) -> list[Rename]:
    return [each.rename for migration in migrations for each in migration.operations if isinstance(each, RenameStep)]
