"""Proxies around a driver's connections and cursors, as the agents that trace statements put them there.

The classes behind them are the proxies' own: what a type of the driver has, the type of a proxy lacks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import wrapt


class WatchedCursor(wrapt.ObjectProxy[Any]):
    """Passes on what is executed, where an agent would begin a span."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__.execute(*args, **kwargs)

    def __enter__(self) -> WatchedCursor:
        self.__wrapped__.__enter__()
        return self


class WatchedConnection(wrapt.ObjectProxy[Any]):
    """Gives cursors that are proxies."""

    def cursor(self, *args: Any, **kwargs: Any) -> WatchedCursor:
        return WatchedCursor(self.__wrapped__.cursor(*args, **kwargs))

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self.cursor().execute(*args, **kwargs)


def wrap_connections(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Let each new connection be a proxy. `replace` sets an attribute, as `MonkeyPatch.setattr` does."""
    for module in (psycopg, sqlite3.dbapi2):
        replace(module, "connect", _wrapping(module.connect))


def _wrapping(connect: Callable[..., Any]) -> Callable[..., WatchedConnection]:
    def wrapping(*args: Any, **kwargs: Any) -> WatchedConnection:
        return WatchedConnection(connect(*args, **kwargs))

    return wrapping
