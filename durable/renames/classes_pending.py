"""The moves of the project's migrations, applied or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from durable.core.moved_names import Move

__all__ = ["every_move", "expected_moves"]


def expected_moves(alias: str) -> list[Move]:
    """Return the moves that the database has, and those of migrations that are still to be applied, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import MovedName
    from durable.models.moved_names import recorded_moves

    connection = connections[alias]
    has_table = MovedName._meta.db_table in connection.introspection.table_names()
    found = recorded_moves(alias) if has_table else []
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return found + _of(migration for migration, _ in plan)


def every_move() -> list[Move]:
    """Return the moves of all migrations of the project, in their order, applied or not. Asks no database."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    seen: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        seen.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return _of(loader.graph.nodes[each] for each in seen)


def _of(migrations: Iterable[Migration]) -> list[Move]:
    # by what an operation says and not by its class: the operations themselves ask for the moves of all migrations
    said = (getattr(each, "move", None) for migration in migrations for each in migration.operations)
    return [each for each in said if isinstance(each, Move)]
