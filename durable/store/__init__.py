"""Stores of runs: one contract and its implementations.

- `base.Store` is the contract; every method is atomic.
- `postgres` is the store for PostgreSQL: one statement for each thing that the engine does (`sql`, `sql_functions`,
  `libpq`, `rows`, `parameters`). `routines` has the texts of the database's functions and triggers, the migration
  operations that create them, and their check.
- `sqlite` is the store for SQLite. `database` is the base class of both: what is the same on both databases.
- `memory` is the store in memory, with `transactional_memory` for tests that use Django's transactions. `row_rules` has
  what it and `sqlite` compute in Python.
- `sessions` restores database sessions that the code of steps has changed; `atomic` is the transaction of an atomic
  step.
- `outline` is a history without values. `prefetched` answers one pass from a history that was loaded with others.

Must not decide anything about workflows: a store guards the fence.
"""

from __future__ import annotations

from functools import cache

from durable.store.base import Store

__all__ = ["Store", "store_for"]


@cache
def store_for(alias: str) -> Store:
    """Return the store on the database `alias`, which is PostgreSQL or SQLite: a system check refuses others."""
    # imported here, because the core imports the contract in this package and must not need Django
    from django.db import connections

    if connections[alias].vendor == "postgresql":
        from durable.store.postgres import PostgresStore

        return PostgresStore(alias)
    from durable.store.sqlite import SQLiteStore

    return SQLiteStore(alias)
