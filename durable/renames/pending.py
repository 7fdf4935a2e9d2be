"""The migrations of the project, and what of their renames and moves is not applied yet.

Reading them imports the migration modules of every app, so that a check of many runs does it once.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from durable.core.names.recorded_names import Move
from durable.core.names.renames import Alias, Aliases, AliasKind, Rename
from durable.renames.operations import renames_of


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


def expected_moves(alias: str, pending: Iterable[Migration]) -> list[Move]:
    """Return the moves that the database has, and those of `pending` migrations, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import MovedName
    from durable.models.renames import recorded_moves

    has_table = MovedName._meta.db_table in connections[alias].introspection.table_names()
    return [*(recorded_moves(alias) if has_table else []), *moves_of(pending)]


def moves_of(migrations: Iterable[Migration]) -> list[Move]:
    """Return the moves of these migrations, in their order. Asks no database."""
    # by what an operation says and not by its class: the operations themselves ask for the moves of all migrations
    said = (getattr(each, "move", None) for migration in migrations for each in migration.operations)
    return [each for each in said if isinstance(each, Move)]


def expected_renames(alias: str, pending: Iterable[Migration]) -> list[Rename | Alias]:
    """Return the renames in force in the database, and those of `pending` migrations, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import RenamedName
    from durable.models.renames import names_in_force

    connection = connections[alias]
    found: list[Rename | Alias] = []
    if RenamedName._meta.db_table in connection.introspection.table_names():
        found = names_in_force(alias)
    return found + [each for each in renames_of_migrations(pending) if each not in found]


def renames_of_migrations(migrations: Iterable[Migration]) -> list[Rename | Alias]:
    """Return the renames of these migrations, in their order, each once. Asks no database."""
    return list(dict.fromkeys(found for each in migrations for found in renames_of(each.operations)))


def with_other_names(workflows: Iterable[str], renames: Iterable[Rename | Alias]) -> list[str]:
    """Return the names of workflows with all others that the renames give them."""
    known = Aliases(each for each in renames if isinstance(each, Alias) and each.kind == AliasKind.WORKFLOW)
    return list(dict.fromkeys(name for each in workflows for name in known.names(each)))
