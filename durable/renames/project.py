"""The migrations of the project: all of them, and those that are still to be applied.

Reading them imports the migration modules of every app, so that a check of many runs does it once.
"""

from __future__ import annotations

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration


def all_migrations() -> list[Migration]:
    """Return all migrations of the project in an order in which they can be applied. Asks no database."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    seen: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        seen.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return [loader.graph.nodes[each] for each in seen]


def pending_migrations(alias: str) -> list[Migration]:
    """Return the migrations that are still to be applied to the database, in their order."""
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [migration for migration, _ in plan]
