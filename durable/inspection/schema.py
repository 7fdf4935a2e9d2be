"""The tables: whether the database has those that this code was written for."""

from __future__ import annotations

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from durable.conf import conf

__all__ = ["how_to_migrate", "missing_migrations"]


def missing_migrations() -> list[str]:
    """What `manage.py migrate durable` would apply to durable's database, as "app.name". Raises what a database does."""
    executor = MigrationExecutor(connections[conf.DATABASE])
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "durable"]
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(wanted)]


def how_to_migrate() -> str:
    """The command that applies them."""
    return f"manage.py migrate durable --database {conf.DATABASE}"
