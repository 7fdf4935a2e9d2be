"""The gate before a worker's claims: nothing is claimed in a database that has gone back in time.

Owns when a worker process looks (`durable.marks.look`): before its first claim, before the first claim of each new
session, and then now and then. A PostgreSQL session leads to one server, and a server does not go back while it runs.
So a look is good for as long as its session, but for `AGAIN` at most: another server with the same name may be in use
meanwhile. A pooler may lead each statement of a session to another server, and a file of SQLite may be replaced while
it is open: there a look is good for `SHORT`. A run that was claimed costs nothing more.

A place of the mark that does not answer closes no gate: Redis decides nothing. The process compares with what it has
seen itself meanwhile.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from django.db import connections

from durable import marks
from durable.conf import conf
from durable.notifier import redis_clients
from durable.store.sessions import driver_connection

logger = logging.getLogger("durable.worker")

#: Seconds for which a look is good in a session that leads to one server, and in any other session.
AGAIN: Final = 15.0
SHORT: Final = 1.0
_MADE: Final = "_durable_looked"  # the attribute of Django's connection: its session, and until when the look is good

_log_this = redis_clients.LogThrottle(60.0)


def is_open() -> bool:
    """Return True if this process may claim runs by the session of this thread. Raises the database's errors."""
    connection: Any = connections[conf.DATABASE]
    connection.close_if_health_check_failed()  # otherwise the claim's statement would, and open a session of its own
    session, until = vars(connection).get(_MADE, (None, 0.0))
    raw = driver_connection(connection)
    if raw is not None and raw is session and time.monotonic() < until:
        return True
    looked_at = time.monotonic()
    position = marks.look()
    if not position.may_claim:
        if _log_this("closed"):
            logger.error(
                "no run is claimed: %s. Decide with `manage.py durable restored`; this worker goes on by itself then",
                position.in_words(),
            )
        return False
    if _log_this.clear("closed"):
        logger.warning("runs are claimed again: it was decided about the database that went back in time")
    raw = driver_connection(connection)
    is_direct = position.session is not None and position.session == raw.pgconn.backend_pid
    vars(connection)[_MADE] = (raw, looked_at + (AGAIN if is_direct else SHORT))
    return True


def look_again() -> None:
    """Let this thread look before its next claim."""
    vars(connections[conf.DATABASE]).pop(_MADE, None)
