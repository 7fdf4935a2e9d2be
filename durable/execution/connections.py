"""The worker process's own state: its name, its database connections, child processes, and transactions left open.

Owns the cleanup of connections around passes, as Django's request cycle does it. A child process that the code of a
step or of a workflow forks must never continue the pass of its parent: a child that returns from the function which
forked it is ended there. A record written inside a transaction of user code would be committed or lost with it: such
transactions are detected here and rolled back. Must not decide what happens to the run: the engine does.
"""

from __future__ import annotations

import contextvars
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar

from django.db import (
    Error,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    reset_queries,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone, translation

from durable.conf import conf
from durable.core.errors import OpenTransactionError
from durable.store import sessions
from durable.store.sessions import driver_connection

logger = logging.getLogger("durable.pass")

CHILD_EXIT_STATUS: Final = 70  # the exit status of a child that returned

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)


_here = threading.local()


class Origin:
    """The process in which a pass began, the only one that may continue it."""

    __slots__ = ("_pid", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._pid = os.getpid()
        self._run_id = run_id

    def end_forked_child(self) -> None:
        """End this process at once if it was forked within the pass. Do not write to or close anything of the
        parent.
        """
        if os.getpid() == self._pid:
            return
        try:
            text = (
                "a process that the code of run %s has forked (pid %d, of %d) came back from the function that forked it, "
                "and is ended: a child must end by itself, with os._exit() for example"
            )
            logger.error(text, self._run_id, os.getpid(), self._pid, extra={"run_id": self._run_id})
        finally:
            os._exit(CHILD_EXIT_STATUS)


def _block_signals() -> None:
    """Before a fork, block signals: those sent to the child wait until the child has its own handlers."""
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _restore_signal_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _remove_worker_handlers() -> None:
    """Remove the worker's signal handlers in a forked child: they would keep `terminate()` from ending the child."""
    for number in _SIGNALS:
        if _is_workers_handler(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _restore_signal_mask()


def _is_workers_handler(handler: Any) -> bool:
    """Return True for a function or method of durable, or a method of a class derived from one of RQ.

    RQ is recognized by its package name, so that a process that serves no RQ queues need not import it.
    """
    bases = type(getattr(handler, "__self__", None)).__mro__
    modules = [getattr(handler, "__module__", None), *(each.__module__ for each in bases)]
    return callable(handler) and any(str(each).partition(".")[0] in ("durable", "rq") for each in modules)


os.register_at_fork(before=_block_signals, after_in_parent=_restore_signal_mask, after_in_child=_remove_worker_handlers)


T = TypeVar("T")

#: What Django raises for a database that is unreachable, restarts or refuses connections.
DATABASE_TROUBLE = (OperationalError, InterfaceError)

#: The same, and the database's errors in a session that does not suit the engine's statements: one that is read only,
#: has another role or another schema, or is on a server that has become a standby. A new session may suit them.
SESSION_TROUBLE = (*DATABASE_TROUBLE, InternalError, ProgrammingError, NotSupportedError)

_started_in = os.getpid()
_inherited: list[object] = []
_name: tuple[int, str] = (0, "")


def worker_name() -> str:
    """Return the name of this process as a worker: `host:pid:random`. A forked child has a name of its own."""
    global _name
    if _name[0] != os.getpid():
        _name = (os.getpid(), f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}")
    return _name[1]


def abandon_inherited_connections() -> None:
    """In a forked child, forget the inherited connections, so that it opens its own; leave the parent's sockets
    untouched.

    Closing an inherited connection would end the session that the parent still uses. The objects are kept, so that
    garbage collection does not close them.
    """
    global _started_in
    if os.getpid() == _started_in:
        return
    _started_in = os.getpid()
    for connection in connections.all(initialized_only=True):
        _abandon(connection)


def _abandon_inherited_sessions() -> None:
    """In any forked child, even of a web server, forget inherited PostgreSQL sessions.

    Two processes on one session receive each other's answers, and a start that was never committed would seem
    committed. Other databases are left to the forking code: Django's own tests inherit in-memory SQLite databases.
    """
    for connection in connections.all(initialized_only=True):
        if connection.vendor == "postgresql":
            _abandon(connection)


os.register_at_fork(after_in_child=_abandon_inherited_sessions)


def _abandon(connection: BaseDatabaseWrapper) -> None:
    _inherited.append(connection.connection)
    connection.connection = None
    # After a fork within a transaction, the wrapper has its state as well.
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.run_on_commit = []
    # The inherited pool has the parent's sessions, and no threads in the child.
    pools: dict[str, object] = getattr(connection, "_connection_pools", {})
    _inherited.append(pools.pop(connection.alias, None))


def close_stale_connections(*, all_connections: bool) -> None:
    """Close connections that are broken or past their age; never one inside a transaction, a test's for example.

    With `all_connections`, check all of them, as Django does at both ends of a request. Without, check only those that
    had errors or are past a CONN_MAX_AGE. This is for the time between the passes of one job: with the default age of 0
    each pass would connect anew.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block and (all_connections or _is_suspect(connection)):
            connection.close_if_unusable_or_obsolete()


def _is_suspect(connection: BaseDatabaseWrapper) -> bool:
    if connection.errors_occurred:
        return True
    has_age = bool(connection.settings_dict.get("CONN_MAX_AGE"))
    return has_age and connection.close_at is not None and time.monotonic() >= connection.close_at


def abandon_transactions() -> None:
    """Drop this thread's connections that code has left broken or in a transaction."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and (
            connection.in_atomic_block or connection.errors_occurred or not connection.get_autocommit()
        ):
            connection.close()
            del connections[connection.alias]  # and with it the state of the transaction


def close_broken_connections() -> None:
    """Close this thread's connections that do not answer, except inside a transaction."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        if not connection.is_usable():
            connection.close()


def close_connections() -> None:
    """Close this thread's connections, except inside a transaction. Sessions do not return to a pool."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            _close(connection)


def reconnect(connection: BaseDatabaseWrapper) -> None:
    """Close the connection, which ends its transaction, and reconnect, which resets Django's notes about it."""
    raw = connection.connection
    _close(connection)
    is_kept = raw is not None and _is_open_in_memory(connection)
    try:
        with connection.wrap_database_errors:
            if is_kept:
                raw.rollback()
            connection.connect()
    except Error:  # the next use connects
        connection.close()
    else:
        if is_kept:
            raw.close()


def _is_open_in_memory(connection: Any) -> bool:
    """Return True for SQLite in memory: Django leaves it open, because the database ends with its last connection."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _close(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is not None and connection.settings_dict["OPTIONS"].get("pool"):
        connection.connection.close()
    connection.close()


def restore_sessions() -> None:
    """Restore this thread's sessions, so that settings made by the run's code do not reach the next run."""
    try:
        sessions.restore_all()
    except Error:
        close_connections()


@contextmanager
def guarded_sessions() -> Iterator[None]:
    """Guard the sessions around a pass: the engine's statements and the next run get sessions like new ones."""
    with sessions.guarded():
        try:
            yield
        finally:
            restore_sessions()


def in_clean_context(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call `function` as Django calls a view: with the default language and time zone, and without leaving context
    variables behind.
    """

    def call() -> T:
        translation.deactivate()
        timezone.deactivate()
        reset_queries()
        return function(*args, **kwargs)

    return contextvars.copy_context().run(call)


_BEGUN: Final = (2, 3)  # libpq's PQTRANS_INTRANS and PQTRANS_INERROR


class OpenTransactions:
    """The open transactions of each thread that works on a pass, besides those around the pass, a test's for example.

    `on_return` is called first when a step's function has ended, whether or not it raised. `roll_back_inside` rolls
    back transactions deeper than a given depth, for a connection that must not be closed.
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
        """Record that this thread executes branches from now on.

        Its connections may differ, and steps in other threads do not use them.
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

        Closing the connection ends its transaction, even if an interruption has left Django's notes inconsistent. It is
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
