"""The state of the database: whether its tables, functions, triggers and sessions are as this code needs them."""

from __future__ import annotations

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from durable.conf import conf
from durable.store.routines import differences

__all__ = ["how_to_migrate", "how_to_set_isolation", "missing_migrations", "wrong_isolation", "wrong_routines"]


def missing_migrations() -> list[str]:
    """Return what `manage.py migrate durable` would apply to durable's database, as "app.name".

    Database errors propagate.
    """
    executor = MigrationExecutor(connections[conf.DATABASE])
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "durable"]
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(wanted)]


def how_to_migrate() -> str:
    """Return the command that applies the missing migrations."""
    return f"manage.py migrate durable --database {conf.DATABASE}"


def wrong_routines() -> list[str]:
    """Describe the functions and triggers of durable's database that differ from the migrations', a phrase for each.

    Those of migrations that are still to be applied are not expected. Database errors propagate.
    """
    return [str(each) for each in differences(conf.DATABASE)]


def wrong_isolation() -> str | None:
    """Return the isolation level with which sessions of durable's database begin, if it is not READ COMMITTED.

    Only PostgreSQL is queried, for the setting of the server, the database or the role. Database errors propagate.
    """
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('default_transaction_isolation')")
        [level] = cursor.fetchone()
    return None if level == "read committed" else str(level)


def how_to_set_isolation() -> str:
    """Return how to correct the isolation level."""
    return (
        "Run ALTER ROLE ... SET default_transaction_isolation = 'read committed' for durable's role (or ALTER DATABASE), "
        "connect again, and ask for another level in the transactions that need it."
    )
