"""How much a transaction reads."""

from __future__ import annotations

from django.db import connections


def rows_read(alias: str) -> int:
    """The rows that this transaction has read of durable's tables so far, however it has found them."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables "
            "WHERE relname LIKE 'durable%'"
        )
        [count] = cursor.fetchone()
    found: int = count
    return found
