"""The databases of the tests of stores, and how the rows that a test has left in one are deleted."""

from __future__ import annotations

from typing import Final

from django.apps import apps
from django.db import connections, transaction

SQLITE: Final = "store_sqlite"
POSTGRES: Final = "store_postgres"


def tables() -> list[str]:
    """All tables of durable, those of runs last: a run with entries cannot be deleted."""
    return [model._meta.db_table for model in reversed(list(apps.get_app_config("durable").get_models()))]


def empty(alias: str) -> None:
    """Delete all rows of durable's tables."""
    statements = [f"DELETE FROM {table}" for table in tables()]
    is_postgres = connections[alias].vendor == "postgresql"
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        for each in ["; ".join(statements)] if is_postgres else statements:
            cursor.execute(each)
