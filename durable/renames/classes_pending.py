"""The moves of migrations, applied or not."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections
from django.db.migrations.migration import Migration

from durable.core.recorded_names import Move


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
