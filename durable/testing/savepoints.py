"""Roll back to a savepoint inside a test's transaction.

Owns what a worker's pass does not need: a worker closes a connection on which code has left a transaction open. A
test's transaction would be lost with its connection.
"""

from __future__ import annotations

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["roll_back_inside"]


def roll_back_inside(connection: BaseDatabaseWrapper, depth: int) -> None:
    """Roll back what was begun within the innermost of the `depth` blocks, or mark that block to be rolled back.

    Changes Django's notes of blocks and savepoints itself: a timeout may have interrupted Django between any two lines,
    so the notes may be inconsistent, and Django's own way out of the blocks cannot be relied on.
    """
    left = connection.savepoint_ids[depth - 1 :]
    del connection.savepoint_ids[depth - 1 :]
    del connection.atomic_blocks[depth:]
    if not left or left[0] is None:
        connection.needs_rollback = True
        return
    connection.needs_rollback = False
    try:
        connection.savepoint_rollback(left[0])
        connection.savepoint_commit(left[0])
    except Error:
        connection.needs_rollback = True
