"""The worker process's own state: its name, its database connections, the context of a pass.

Owns the cleanup of connections around passes, as Django's request cycle does it. Must not know about runs.

Child processes that the code of a step or of a workflow forks: a multiprocessing pool, or `os.fork()`.

Owns two rules. Such a child is an ordinary process, in which signals have their default effect. It must never continue
the pass of its parent: a child that returns from the function which forked it is ended there.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from durable.store import sessions

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
        """End this process at once if it was forked within the pass. Write and close nothing of the parent's."""
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
    """Return True for a function or method of durable's, or a method of any class derived from one of RQ's.

    RQ is recognized by its package's name: a process that does not serve RQ's queues need not import it.
    """
    bases = type(getattr(handler, "__self__", None)).__mro__
    modules = [getattr(handler, "__module__", None), *(each.__module__ for each in bases)]
    return callable(handler) and any(str(each).partition(".")[0] in ("durable", "rq") for each in modules)


os.register_at_fork(before=_block_signals, after_in_parent=_restore_signal_mask, after_in_child=_remove_worker_handlers)


T = TypeVar("T")

#: What Django raises for a database that is unreachable, restarts or refuses connections.
DATABASE_TROUBLE = (OperationalError, InterfaceError)

#: The same, and what a database raises in a session that does not suit the engine's statements: one that is read only,
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
    """In any forked child, a web server's too, forget inherited PostgreSQL sessions.

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
    # After a fork within a transaction, the wrapper has its marks as well.
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
    """Drop this thread's connections that code has left in a transaction, or broken."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and (
            connection.in_atomic_block or connection.errors_occurred or not connection.get_autocommit()
        ):
            connection.close()
            del connections[connection.alias]  # and with it the marks of the transaction


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
    """Close the connection, which ends its transaction, and connect again, which resets what Django notes of it."""
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
    """Call `function` as Django calls a view: default language and time zone, and no context variables left behind."""

    def call() -> T:
        translation.deactivate()
        timezone.deactivate()
        reset_queries()
        return function(*args, **kwargs)

    return contextvars.copy_context().run(call)
