"""The transactions that user code has open in the threads of a pass, and may have left open.

A record that is written inside such a transaction is committed or lost with it. Owns detecting that and rolling back.
Must not decide what follows for the run: the engine does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durable.conf import conf
from durable.core.errors import OpenTransactionError
from durable.execution.connections import reconnect
from durable.store.sessions import driver_connection

logger = logging.getLogger("durable.pass")

_BEGUN: Final = (2, 3)  # libpq's PQTRANS_INTRANS and PQTRANS_INERROR


class OpenTransactions:
    """The open transactions of each thread that works on a pass, besides those around the pass, a test's for example.

    `on_return` is called first when a step's function has ended, whether or not it raised. `roll_back_inside` rolls
    back what is open on a connection beyond a depth, where the connection must not be closed.
    """

    def __init__(
        self, on_return: Callable[[], object], roll_back_inside: Callable[[BaseDatabaseWrapper, int], None] | None
    ) -> None:
        self.on_return: Final = on_return
        self._roll_back_inside = roll_back_inside or _exit_blocks
        self._here = threading.local()
        self._here.around = _depths(self._connections())
        #: A context manager to enter around a step's function, in any thread; several may be inside at once.
        self.step: Final = _Running(on_return)

    def enter_branch_thread(self) -> None:
        """Note that this thread executes branches from now on.

        Its connections may be other ones, and steps in other threads do not use them.
        """
        self._here.__dict__.clear()
        self._here.has_branches = True

    def is_open(self) -> bool:
        """Return True if a write to durable's database now would be inside an open transaction, which could roll it
        back.
        """
        connection = self._own()
        return bool(_nested(connection) > self._here.depth)

    def function(self, what: str, *, is_atomic: bool) -> AbstractContextManager[None]:
        """Return a context manager around a synchronous function: roll back what the function leaves open in this
        thread.

        It raises OpenTransactionError if the function returned, because then the mistake would go unnoticed. With
        `is_atomic`, the transaction around the function is the step's own, and is rolled back with it.
        """
        return _Function(self, what, is_atomic=is_atomic)

    def rollback_leftovers(self, *, already_failing: bool) -> bool:
        """Roll back transactions left open by user code before the pass commits.

        Returns False if an async step is still inside one. Raises OpenTransactionError for what was rolled back, unless
        the commit reports a worse failure anyway (`already_failing`).
        """
        connection = self._own()
        if _depth(connection) <= self._here.depth:
            return True
        if self.step.count and not getattr(self._here, "has_branches", False):
            return False
        left = self.roll_back(getattr(self._here, "around", {}))
        error = OpenTransactionError.left_open_by("what came before this commit", left)
        if not already_failing:
            raise error
        logger.error("%s", error)
        return True

    def depths(self) -> dict[str, int]:
        """Return the depth of open transactions in this thread, by database; a database not used in this thread is left
        out.
        """
        return _depths(self._connections())

    def roll_back(self, before: dict[str, int], *, is_atomic: bool = False) -> list[str]:
        """End what is open in this thread beyond `before`; return the databases where there was something.

        Closing the connection ends its transaction, whatever state an interruption has left Django's notes in. It is
        not closed if that would end more: a transaction around the pass, or one that an async step holds open.
        """
        around: dict[str, int] = getattr(self._here, "around", {})
        left = []
        for connection in self._connections():
            alias = connection.alias
            wanted = before.get(alias, 0)
            if _depth(connection) <= wanted:
                continue
            left.append(alias)
            of_others = around.get(alias, 0) if is_atomic and alias == conf.DATABASE else wanted
            if of_others:
                self._roll_back_inside(connection, wanted)
            else:
                reconnect(connection)
        return left

    def _connections(self) -> list[BaseDatabaseWrapper]:
        """Return this thread's connections. Once there is one to each database, the list is complete and is kept."""
        cached: list[BaseDatabaseWrapper] | None = getattr(self._here, "connections", None)
        if cached is not None:
            return cached
        found = list(connections.all(initialized_only=True))
        if len(found) == len(list(connections)):
            self._here.connections = found
        return found

    def _own(self) -> BaseDatabaseWrapper:
        """Return this thread's connection to durable's database. Every operation needs it, so it is looked up once."""
        here = self._here
        found: BaseDatabaseWrapper | None = getattr(here, "connection", None)
        if found is None:
            found = here.connection = connections[conf.DATABASE]
            here.depth = getattr(here, "around", {}).get(conf.DATABASE, 0)
        return found


class _Running:
    """Counts the functions of steps that run now."""

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
    """See `OpenTransactions.function`. A class rather than a generator, because it is entered for each step."""

    __slots__ = ("_before", "_is_atomic", "_transactions", "_what")

    def __init__(self, transactions: OpenTransactions, what: str, *, is_atomic: bool) -> None:
        self._transactions = transactions
        self._what = what
        self._is_atomic = is_atomic

    def __enter__(self) -> None:
        self._before = self._transactions.depths()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._transactions.on_return()
        left = self._transactions.roll_back(self._before, is_atomic=self._is_atomic)
        if left and kind is None:
            raise OpenTransactionError.left_open_by(self._what, left)


def _exit_blocks(connection: BaseDatabaseWrapper, depth: int) -> None:
    """Leave the blocks beyond `depth` as their own code should have done after an error."""
    for block in reversed(connection.atomic_blocks[depth:]):
        block.__exit__(OpenTransactionError, None, None)


def in_transaction() -> bool:
    """Return True if this thread has a transaction open on durable's database."""
    return _nested(connections[conf.DATABASE]) > 0


def _nested(connection: BaseDatabaseWrapper) -> int:
    """Return how many transactions and savepoints are open on the connection, as far as Django knows."""
    return len(connection.savepoint_ids) + connection.in_atomic_block


def _depth(connection: BaseDatabaseWrapper) -> int:
    """Return the same as `_nested`, but count a transaction begun without Django too, and one half-way out of which an
    interruption has left Django.
    """
    nested = _nested(connection)
    if nested or connection.connection is None:
        return nested
    return int(not connection.autocommit or connection.needs_rollback or _is_begun(connection))


def _is_begun(connection: BaseDatabaseWrapper) -> bool:
    raw = driver_connection(connection)
    if connection.vendor == "postgresql":
        return getattr(raw, "pgconn", raw).transaction_status in _BEGUN
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    return False


def _depths(used: Iterable[BaseDatabaseWrapper]) -> dict[str, int]:
    return {each.alias: _depth(each) for each in used}
