"""The transactions that user code has open in the threads of a pass, and may have left open.

A record that is written inside one of them is committed with it, or lost with it. Owns noticing that and rolling back;
what follows for the run is the engine's to say.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.conf import conf
from durable.core.errors import OpenTransactionError

__all__ = ["OpenTransactions", "in_transaction"]

logger = logging.getLogger("durable.pass")

_BEGUN: Final = (2, 3)  # libpq's PQTRANS_INTRANS and PQTRANS_INERROR


class OpenTransactions:
    """What is open in each thread that works on a pass, besides what was open around the pass: a test's, perhaps.

    `on_return` is called first when a step's function has ended, however it did.
    """

    def __init__(self, on_return: Callable[[], object] = lambda: None) -> None:
        self.on_return: Final = on_return
        self._here = threading.local()
        self._here.around = _depths(self._connections())
        #: To be entered around a step's function, wherever it runs; by several at once.
        self.step: Final = _Running(on_return)

    def enter_branch_thread(self) -> None:
        """This thread has branches from now on: its connections may be others, and what steps do elsewhere is not here."""
        self._here.__dict__.clear()
        self._here.has_branches = True

    def is_open(self) -> bool:
        """Whether what is written now, on the database of durable's tables, could be taken back with a transaction."""
        connection = self._own()
        return bool(_nested(connection) > self._here.depth)

    def function(self, what: str) -> AbstractContextManager[None]:
        """Around a synchronous function, in its thread: what it leaves open is rolled back.

        Raises OpenTransactionError if it returned, for then it is a mistake that nobody has noticed yet.
        """
        return _Function(self, what)

    def rollback_leftovers(self, *, is_told: bool) -> bool:
        """Before a commit of the pass: roll back what is open. False if a step, in a task, is still at it.

        Raises OpenTransactionError for what was rolled back, unless the run `is_told` of something worse.
        """
        connection = self._own()
        if _depth(connection) <= self._here.depth:
            return True
        if self.step.count and not getattr(self._here, "has_branches", False):
            return False
        left = self.roll_back(getattr(self._here, "around", {}))
        error = OpenTransactionError.left_open_by("what came before this commit", left)
        if not is_told:
            raise error
        logger.error("%s", error)
        return True

    def depths(self) -> dict[str, int]:
        """What is open in this thread, by database; of one that has not been used nothing."""
        return _depths(self._connections())

    def roll_back(self, before: dict[str, int]) -> list[str]:
        """Roll back what is open in this thread beyond `before`; the databases where there was something."""
        return _roll_back(self._connections(), before)

    def _connections(self) -> list[BaseDatabaseWrapper]:
        """This thread's connections; once there is one to each database, no other can come."""
        cached: list[BaseDatabaseWrapper] | None = getattr(self._here, "connections", None)
        if cached is not None:
            return cached
        found = list(connections.all(initialized_only=True))
        if len(found) == len(list(connections)):
            self._here.connections = found
        return found

    def _own(self) -> BaseDatabaseWrapper:
        """This thread's connection to durable's tables; asked for at every operation, so it is looked up once."""
        here = self._here
        found: BaseDatabaseWrapper | None = getattr(here, "connection", None)
        if found is None:
            found = here.connection = connections[conf.DATABASE]
            here.depth = getattr(here, "around", {}).get(conf.DATABASE, 0)
        return found


class _Running:
    """How many functions of steps run now."""

    __slots__ = ("_lock", "_on_return", "count")

    def __init__(self, on_return: Callable[[], object]) -> None:
        self.count = 0
        self._on_return = on_return
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *exc: object) -> None:
        self._on_return()
        with self._lock:
            self.count -= 1


class _Function:
    """See `PassTransactions.function`. A class, because it is entered for each step."""

    __slots__ = ("_before", "_transactions", "_what")

    def __init__(self, transactions: OpenTransactions, what: str) -> None:
        self._transactions = transactions
        self._what = what

    def __enter__(self) -> None:
        self._before = self._transactions.depths()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._transactions.on_return()
        if (left := self._transactions.roll_back(self._before)) and kind is None:
            raise OpenTransactionError.left_open_by(self._what, left)


def in_transaction() -> bool:
    """Whether this thread has a transaction open on the database of durable's tables."""
    return _nested(connections[conf.DATABASE]) > 0


def _nested(connection: BaseDatabaseWrapper) -> int:
    """How many transactions and savepoints are open on the connection, as Django knows."""
    return len(connection.savepoint_ids) + connection.in_atomic_block


def _depth(connection: BaseDatabaseWrapper) -> int:
    """As `_nested`; one that was begun past Django counts too."""
    nested = _nested(connection)
    if nested or connection.connection is None:
        return nested
    return int(not connection.autocommit or _is_begun(connection))


def _is_begun(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if connection.vendor == "postgresql":
        return getattr(raw, "pgconn", raw).transaction_status in _BEGUN
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    return False


def _depths(used: Iterable[BaseDatabaseWrapper]) -> dict[str, int]:
    return {each.alias: _depth(each) for each in used}


def _roll_back(used: Iterable[BaseDatabaseWrapper], before: dict[str, int]) -> list[str]:
    left = []
    for connection in used:
        wanted = before.get(connection.alias, 0)
        if _depth(connection) <= wanted:
            if not connection.in_atomic_block:
                connection.needs_rollback = False  # of a block that was interrupted as it ended
            continue
        left.append(connection.alias)
        try:
            if wanted:
                _back_to_savepoint(connection, wanted)
            else:
                _leave(connection)
        except Error:  # with the connection its transactions are gone
            connection.close()
    return left


# An interruption at a timeout may have come between any two lines of Django's, so what it notes of blocks and savepoints
# need not fit together, and its own way out of them cannot be relied on.


def _leave(connection: BaseDatabaseWrapper) -> None:
    """Roll back, outside of all blocks."""
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.atomic_blocks = []
    connection.needs_rollback = False
    if connection.closed_in_transaction:
        connection.closed_in_transaction = False
        connection.connection = None
        return
    connection.rollback()
    connection.set_autocommit(True)


def _back_to_savepoint(connection: BaseDatabaseWrapper, wanted: int) -> None:
    """Roll back what was begun within the innermost of the `wanted` blocks; or mark that to be rolled back."""
    left = connection.savepoint_ids[wanted - 1 :]
    del connection.savepoint_ids[wanted - 1 :]
    del connection.atomic_blocks[wanted:]
    if not left or left[0] is None:
        connection.needs_rollback = True
        return
    connection.needs_rollback = False
    try:
        connection.savepoint_rollback(left[0])
        connection.savepoint_commit(left[0])
    except Error:
        connection.needs_rollback = True
