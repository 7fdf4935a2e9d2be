"""The guard: reports effects of workflow code between its operations, which each pass would repeat.

Owns which effects are noticed (statements of the database, files, sockets, processes, a changed input), whose they are,
and whether they are refused or logged. Must not know the history, and does nothing where no workflow code runs. The
code of steps, of durable itself and of loggers is let through.
"""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from durable.guard.events import (
    MODES,
    is_developing,
    mode,
    raising_by_default,
    refusing_effects,
    watch_events,
    watching_end,
)
from durable.guard.statements import install, is_guards, with_unchanged_input

__all__ = [
    "MODES",
    "begin_pass",
    "install",
    "is_guards",
    "observes",
    "raising_by_default",
    "refusing_effects",
    "watch_events",
    "watching_end",
    "with_unchanged_input",
]


def begin_pass() -> bool:
    """Prepare for a pass. Return whether the guard watches everything, as it does in development and in tests."""
    if mode() == "off" or not is_developing():
        return False
    watch_events()
    return True


def observes(connection: BaseDatabaseWrapper) -> bool:
    """Return True if other code than the guard observes each statement of the connection."""
    wrappers = connection.execute_wrappers
    return bool(wrappers) and not (len(wrappers) == 1 and is_guards(wrappers[0]))
