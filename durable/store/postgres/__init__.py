"""The store for PostgreSQL: one statement, one round trip and one commit for each thing that the engine does.

`store` has the contract; `sql` and `sql_functions` the statements and calls, `parameters` what they are given, and
`libpq` the way to the server around the driver's cursors. The functions themselves are in `durable.store.routines`.
"""

from durable.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
