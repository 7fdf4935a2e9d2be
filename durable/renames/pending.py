"""The renames of migrations, applied or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.migration import Migration

from durable.core.renames import Alias, Aliases, AliasKind, Rename
from durable.renames.operations import renames_of


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
