"""Call durable's synchronous functions from an event loop, and leave that loop's database connections as they were.

The call runs in the thread in which Django runs all synchronous code of the request or the loop, so it belongs to the
transaction that is open there. No other code maintains that thread's connections: outside a request no Django signal
closes them, and a connection that PostgreSQL has cut fails for ever. So a connection that a call opens is closed at the
end of the call, whatever CONN_MAX_AGE says, and a connection that the server has cut is replaced before the call uses
it. Connections inside a transaction, for example a test's, are left alone.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

P = ParamSpec("P")
R = TypeVar("R")


async def run_sync(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `function` returns.

    The function must not block for long: it blocks all synchronous code of the loop.
    """

    def call() -> R:
        with _connections_as_found():
            return function(*args, **kwargs)

    return await sync_to_async(call)()


def in_async(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the twin of a blocking method or function, to be awaited: it has the same parameters and outcome."""

    async def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return await run_sync(method, *args, **kwargs)

    update_wrapper(called, method, assigned=("__module__", "__annotations__"))
    twin = f"a{method.__name__}"
    called.__name__, called.__qualname__ = twin, method.__qualname__.removesuffix(method.__name__) + twin
    called.__doc__ = f"`{method.__name__}`, from async code."
    return called


@contextmanager
def _connections_as_found() -> Iterator[None]:
    found_open = set()
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            found_open.add(connection.alias)
            if not connection.in_atomic_block and _may_be_cut(connection) and not connection.is_usable():
                connection.close()
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            if connection.alias not in found_open and not connection.in_atomic_block:
                connection.close()


def _may_be_cut(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server may have closed the session, without a round trip: an idle socket has no data."""
    if connection.errors_occurred:
        return True
    try:
        with connection.wrap_database_errors:
            descriptor = connection.connection.fileno()
    except AttributeError:
        return False  # a database without a socket, SQLite
    except Error:  # the driver knows that the connection is closed
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
