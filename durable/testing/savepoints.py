"""Keep a test's transaction in order: roll back to a savepoint inside it, and go on after a refused statement.

Owns what a worker's pass does not need: a worker closes a connection on which code has left a transaction open. A
test's transaction would be lost with its connection.
"""

from __future__ import annotations

from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.core.errors import OutsideStepError


def go_on_after_refusals() -> None:
    """Let the test use its transactions further after the guard has refused statements.

    Such a statement was not sent, but Django counts it as failed.
    """
    connection: Any  # the stubs lack rollback_exc
    for connection in connections.all(initialized_only=True):
        if connection.needs_rollback and isinstance(connection.rollback_exc, OutsideStepError):
            connection.needs_rollback = False
            connection.rollback_exc = None


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
