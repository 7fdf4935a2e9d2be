"""The channel of PostgreSQL on which, without Redis, processes notify workers of due runs (`LISTEN` and `NOTIFY`).

Owns what is sent and how often; `durable.worker.listener` receives it. As with Redis, a message carries no truth, and
the sweep makes up for a lost one.

- A message is sent *after* the commit, by a statement of its own. A transaction that notifies takes a lock of the whole
  server and keeps it until its commit is on the disk, so that such commits wait for each other. A transaction that does
  nothing else waits for no disk (docs/speed.md has the figures).
- A process sends one message about a queue in `QUIET` seconds. A worker that hears one looks at once, and again
  `LOOK_AGAIN` seconds later: it then sees what was committed meanwhile without a notification.
- Behind a pooler in transaction mode a message is sent, and nobody hears it: workers notice that, and poll.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from django.db import connections, transaction

from durable.conf import conf
from durable.notifier import redis_clients, wakeups

logger = logging.getLogger("durable.bell")

CHANNEL: Final = "durable"
NOTIFY: Final = "SELECT pg_notify(%s, %s)"
#: The name of listening sessions in `pg_stat_activity`.
LISTENER: Final = "durable listener"
QUIET: Final = 0.01
LOOK_AGAIN: Final = 0.02

# Sessions that have waited for longer than a lease for their client to read. One in the middle of many messages is in a
# transaction, and no row that was deleted since can be removed.
_END_STUCK: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE application_name = %s AND datname = current_database() AND usename = current_user
   AND wait_event = 'ClientWrite' AND state_change < clock_timestamp() - %s * interval '1 second'"""

_log_this = redis_clients.LogThrottle()
_sent_at: dict[tuple[str, str], float] = {}  # monotonic, by kind and queue


def is_used() -> bool:
    """Return True if processes notify each other through PostgreSQL."""
    return not conf.REDIS and conf.LISTEN and connections[conf.DATABASE].vendor == "postgresql"


def in_words() -> str:
    """Return how workers learn of due runs without Redis."""
    polling = f"the database every {conf.POLL_INTERVAL:g} s"
    return (
        f"workers listen to PostgreSQL, or poll {polling} where a pooler prevents that"
        if is_used()
        else f"workers poll {polling}"
    )


def tell_due(queue: str) -> None:
    """Tell workers that `queue` has due runs. Raises nothing."""
    _tell("due", queue)


def tell_deadline(queue: str) -> None:
    """Tell timers that `queue` has a deadline before their next look. Raises nothing."""
    _tell("deadline", queue)


def _tell(kind: str, queue: str) -> None:
    if wakeups.is_silent() or not is_used():
        return
    connection = connections[conf.DATABASE]
    if connection.in_atomic_block:  # what is notified must be committed
        transaction.on_commit(lambda: _tell(kind, queue), using=conf.DATABASE)
        return
    key, now = (kind, queue), time.monotonic()
    if now - _sent_at.get(key, -QUIET) < QUIET:
        return
    _sent_at[key] = now  # before it is sent: others need not wait for the answer
    try:
        with connection.cursor() as cursor:
            cursor.execute(NOTIFY, [CHANNEL, json.dumps({kind: queue})])
    except Exception as error:  # noqa: BLE001 - the caller's work is committed, and must not fail
        _sent_at.pop(key, None)
        if _log_this(queue):
            text = 'cannot notify workers of queue "%s", the next sweep finds its runs: %s: %s'
            logger.warning(text, queue, type(error).__name__, error)


def end_stuck_listeners() -> None:
    """End the sessions of listeners that have been stopped, and so read nothing. They connect again if they go on."""
    if not is_used():
        return
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(_END_STUCK, [LISTENER, conf.LEASE])
        if ended := cursor.fetchall():
            logger.warning("ended %d listening sessions whose workers have read nothing for a while", len(ended))
