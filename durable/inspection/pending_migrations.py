"""The state of the database: whether server, tables, functions, triggers and sessions are as this code needs them."""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, FloatField, Func, Value

from durable.conf import conf
from durable.store.routines import differences

OLDEST_POSTGRES: Final = 15  # the oldest version that the tests try


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


def too_old_server() -> str | None:
    """Return the version of durable's database server if it is older than the oldest PostgreSQL that is supported.

    Database errors propagate.
    """
    connection: Any = connections[conf.DATABASE]
    if connection.vendor != "postgresql":
        return None
    version: int = connection.pg_version
    return f"{version // 10_000}.{version % 10_000}" if version < OLDEST_POSTGRES * 10_000 else None


def cached_tables() -> list[str]:
    """Return those of durable's tables that are not read anew each time: a query cache stands before them.

    Each is asked twice for a random number. Database errors propagate.
    """
    drawn = Count("pk") + Func(function="RANDOM", output_field=FloatField())
    found = []
    for model in apps.get_app_config("durable").get_models():
        nothing = model._default_manager.using(conf.DATABASE).alias(nothing=Value(0)).filter(nothing=1)
        first, second = (nothing.aggregate(drawn=drawn)["drawn"] for _ in range(2))
        if first == second:
            found.append(model._meta.db_table)
    return found


def how_to_let_reads_through() -> str:
    """Return how to keep a query cache from durable's tables."""
    return (
        "Exempt the app durable from the cache: its tables are written by functions in the database, which no cache notices, and "
        "a run that is told of old rows waits for ever. Of django-cachalot that is "
        'CACHALOT_UNCACHABLE_APPS = ["durable"].'
    )
