"""The database: whether its tables, functions, triggers and sessions are as this code needs them."""

from __future__ import annotations

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from durable.conf import conf
from durable.store.routines import differences

__all__ = ["how_to_migrate", "how_to_set_isolation", "missing_migrations", "wrong_isolation", "wrong_routines"]


def missing_migrations() -> list[str]:
    """What `manage.py migrate durable` would apply to durable's database, as "app.name". Raises what a database does."""
    executor = MigrationExecutor(connections[conf.DATABASE])
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "durable"]
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(wanted)]


def how_to_migrate() -> str:
    """The command that applies them."""
    return f"manage.py migrate durable --database {conf.DATABASE}"


def wrong_routines() -> list[str]:
    """The functions and triggers of durable's database that are not as its migrations made them, a phrase for each.

    Those of migrations that are still to be applied are not expected. Raises what a database does.
    """
    return [str(each) for each in differences(conf.DATABASE)]


def wrong_isolation() -> str | None:
    """The isolation level with which sessions of durable's database begin, if it is not READ COMMITTED.

    PostgreSQL alone is asked: what the server, the database or the role has set. Raises what a database does.
    """
    connection = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('default_transaction_isolation')")
        [level] = cursor.fetchone()
    return None if level == "read committed" else str(level)


def how_to_set_isolation() -> str:
    """What to do about that."""
    return (
        "Run ALTER ROLE ... SET default_transaction_isolation = 'read committed' for durable's role (or ALTER DATABASE), "
        "connect anew, and ask for another level in the transactions that need it."
    )
