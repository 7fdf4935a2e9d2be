"""Where runs are kept: the portable store, the PostgreSQL one and the in-memory one, under one contract."""

from __future__ import annotations

from functools import cache

from durable.store.base import Store

__all__ = ["Store", "store_for"]


@cache
def store_for(alias: str) -> Store:
    """The store on the database `alias`: PostgreSQL has one of its own, the others share the portable one."""
    # here, because the core imports the contract beside these, and must not need Django
    from django.db import connections

    if connections[alias].vendor == "postgresql":
        from durable.store.postgres import PostgresStore

        return PostgresStore(alias)
    from durable.store.orm import OrmStore

    return OrmStore(alias)
