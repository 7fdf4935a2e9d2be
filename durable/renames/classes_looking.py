"""How a process looks for moved names when a recorded name does not exist in it.

Owns how the table is read: in a thread and on a connection of its own, because a name may occur anywhere: in a failed
transaction, on an event loop, or between two operations of a workflow.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import Context
from typing import Final

from django.db import connections

from durable.conf import conf
from durable.core.names.recorded_names import put_in_force

logger = logging.getLogger("durable.pass")

_EVERY: Final = 1.0  # seconds between two queries
_LONGEST: Final = 5.0  # seconds to wait for a query
_lock = threading.Lock()
_next = 0.0


def look_for_moves() -> None:
    """Put the moves in the database in force, unless that was done within the last second. Raises nothing."""
    global _next  # guarded by the lock
    if not _lock.acquire(timeout=_LONGEST):
        return
    try:
        if time.monotonic() < _next:
            return
        # in an empty context: the query is not an effect of the workflow's code
        thread = threading.Thread(target=Context().run, args=(_read,), name="durable-moves", daemon=True)
        thread.start()
        thread.join(_LONGEST)
        _next = time.monotonic() + _EVERY
    finally:
        _lock.release()


def _read() -> None:
    from durable.models.renames import recorded_moves

    try:
        put_in_force(recorded_moves(conf.DATABASE))
    except Exception as error:  # noqa: BLE001  # the name stays unknown, and its reader says so
        logger.debug("cannot read which classes have moved: %s: %s", type(error).__name__, error)
    finally:
        connections.close_all()
