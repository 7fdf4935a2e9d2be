"""The renames of the project's migrations, applied or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from durable.core.aliases import Alias, Aliases, AliasKind
from durable.core.renames import Rename
from durable.renames.operations import renames_of

__all__ = ["every_rename", "expected_renames", "with_other_names"]


def expected_renames(alias: str) -> list[Rename | Alias]:
    """Return the renames in force in the database, and those of migrations that are still to be applied, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import RenamedName
    from durable.models.renames import names_in_force

    connection = connections[alias]
    found: list[Rename | Alias] = []
    if RenamedName._meta.db_table in connection.introspection.table_names():
        found = names_in_force(alias)
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return found + [each for each in _of(migration for migration, _ in plan) if each not in found]


def every_rename() -> list[Rename | Alias]:
    """Return the renames of all migrations of the project, in their order, applied or not. Asks no database."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    seen: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        seen.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return list(dict.fromkeys(_of(loader.graph.nodes[each] for each in seen)))


def with_other_names(workflows: Iterable[str], renames: Iterable[Rename | Alias]) -> list[str]:
    """Return the names of workflows with all others that the renames give them."""
    known = Aliases(each for each in renames if isinstance(each, Alias) and each.kind == AliasKind.WORKFLOW)
    return list(dict.fromkeys(name for each in workflows for name in known.names(each)))


def _of(migrations: Iterable[Migration]) -> list[Rename | Alias]:
    return [each for migration in migrations for each in renames_of(migration.operations)]
