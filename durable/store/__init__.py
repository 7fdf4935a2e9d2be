"""Stores of runs: one contract and its implementations.

- `base.Store` is the contract; every method is atomic.
- `postgres` is the store for PostgreSQL: one statement for each thing that the engine does. `routines` has the texts of
  the database's functions and triggers, the migration operations that create them, and their check.
- `sqlite` is the store for SQLite. `database` is the base class of both, and `tables` has rows by subject: what SQLite
  does with them, and what is the same on both databases.
- `memory` is the store in memory; its `transactional` is for tests that use Django's transactions.
- `rules` has what `sqlite` and `memory` compute in Python, and what every store decides alike.
- `sessions` restores database sessions that the code of steps has changed; `transactions` has the transaction of an
  atomic step, and transactions that do not wait long for locks.
- `surveys` describes a history without its values. `recovery` recovers runs and their children over the contract.

Must not decide anything about workflows: a store guards the fence.
"""

from __future__ import annotations

from functools import cache

from durable.store.base import Store

__all__ = ["Store", "store_for"]


@cache
def store_for(alias: str) -> Store:
    """Return the store on the database `alias`: PostgreSQL or SQLite. A system check refuses other databases."""
    # imported here, because the core imports the contract in this package and must not need Django
    from django.db import connections

    if connections[alias].vendor == "postgresql":
        from durable.store.postgres import PostgresStore

        return PostgresStore(alias)
    from durable.store.sqlite import SQLiteStore

    return SQLiteStore(alias)
