"""The bell: tells RQ workers that a queue has due runs, and timers that a deadline is near.

Owns the RQ jobs of durable, one per queue and not per run, and the Redis keys that coalesce them. The bell carries no
truth: the database says what is due, a lost ring is made up for by the sweep, one too many finds nothing to do.
Nothing here raises or blocks for long: callers have committed their work and must not fail for Redis.

How rings are coalesced. A ring sets the key `durable:bell:<queue>` if it is not set (the value is the id of the RQ job
it stands for) and enqueues that job, in one step (`durable.notifier.enqueue`); if the key is set, somebody's job is about to look,
and nothing more is needed. The job clears the key *before* it looks into the database. The races:

- A ring before the clear: its run was committed before the ring, and the job looks after the clear. Seen.
- A ring between the clear and the look: the key is free, so a second job is enqueued. One look too many.
- Two rings at once: one of them sets the key.
- The job is lost (a worker was killed between taking and clearing, an operator emptied the RQ queue): rings are swallowed
  until the key expires. The sweep does not wait for that: it *insists*, that is, it looks whether the job lies in the RQ
  queue, and puts another one there if not.
- A worker that looks at the newer end of what is due (`durable.worker.claim_bounds`) is told by a second key to look at all: a ring of
  the sweep sets it whether or not it enqueues a job, and the job takes it with the clear.
- Redis is flushed, or evicts the key: the next ring enqueues. If it loses the job alone, see above.
- Redis refuses (its user lacks a permission, it is full, it is a replica): the ring is dropped, and the log says what to do.
- There is no Redis (`DURABLE["REDIS"] = False`): what listens in this process is notified (`durable.notifier.wakeups`), and workers poll.
- Redis is down: the ring is dropped, and the sweep rings once Redis is back. Goes down just when it was sent a ring: the
  same, and the next ring tells, because nobody waits for the answer (`durable.notifier.pipelining`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db import connections, transaction
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq.timeouts import BaseTimeoutException

from durable.conf import conf
from durable.core import clock
from durable.notifier import enqueue, redis_clients, silence, wakeups

__all__ = ["ALARMS", "acknowledge", "notify", "notify_at", "notify_at_on_commit", "notify_on_commit", "on_commit"]

logger = logging.getLogger("durable.bell")

UNKNOWN_QUEUE = (
    'cannot %s for queue "%s": RQ_QUEUES lacks it, and has %s. Its runs wait until RQ_QUEUES has it and a durable_worker '
    "serves it; if the name is a mistake, cancel them and start them on another queue"
)
#: How long due runs wait after such an error; the first class that fits counts.
UNTIL: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AuthenticationError, "RQ_QUEUES has a user and a password that Redis knows"),
    (NoPermissionError, "Redis allows its user what docs/guides/operating.md lists"),
    (OutOfMemoryError, "Redis has more memory (its maxmemory)"),
    (ReadOnlyError, "RQ_QUEUES leads to the master, which this Redis is not"),
    (ResponseError, "Redis does not refuse it any more"),
    (Exception, "the first sweep after Redis is back"),
)
QUIET = 5.0  # seconds without a further try after Redis let a caller wait
#: The pub/sub channel of the alarms; a message is JSON: `{"queue": ..., "at": ISO 8601}`.
ALARMS = "durable:alarms"

_log_this = redis_clients.LogThrottle()
_quiet_until: dict[str, float] = {}


def notify(queue: str, *, force: bool = False) -> None:
    """Make a worker look at `queue` now.

    With `force` (the sweep) the bell is rung even if somebody's ring is pending whose job is lost, and even if Redis
    has just let a caller wait.
    """
    if not conf.REDIS:
        wakeups.notify(queue)
        return
    if force or time.monotonic() >= _quiet_until.get(queue, 0.0):
        _best_effort(queue, "ring", lambda: enqueue.notify(queue, force=force))


def notify_on_commit(queues: Iterable[str], using: str | None = None) -> None:
    """Ring for each queue when the transaction on `using` (durable's database) commits; now if there is none.

    However often a transaction asks for a queue, it rings once. A savepoint that is rolled back takes its own wish
    with it, not those of others.
    """
    alias = using or conf.DATABASE
    rung = _notified_in_this_transaction(alias)
    for queue in queues:
        on_commit(lambda queue=queue: _notify_once(queue, alias, rung), using=alias)  # type: ignore[misc]


def notify_at(queue: str, moment: datetime) -> None:
    """Tell the timers that a run of `queue` is due at `moment` (aware).

    Timers ask the database for deadlines at every sweep; only one that is nearer needs an alarm, and only for that one
    anything is sent. A moment that has passed rings.
    """
    if not conf.REDIS:
        wakeups.notify_at(queue, moment)
        return
    remaining = moment - clock.now()
    if remaining <= timedelta(0):
        notify(queue)
    elif remaining <= timedelta(seconds=conf.SWEEP_INTERVAL + 1) and time.monotonic() >= _quiet_until.get(queue, 0.0):
        message = json.dumps({"queue": queue, "at": moment.isoformat()})
        _best_effort(queue, "set an alarm", lambda: redis_clients.client(queue).publish(ALARMS, message))


def notify_at_on_commit(queue: str, moment: datetime, using: str | None = None) -> None:
    """`alarm`, when the transaction on `using` (durable's database) commits."""
    on_commit(lambda: notify_at(queue, moment), using=using or conf.DATABASE)


def acknowledge(queue: str) -> bool:
    """Let the next ring be heard; called by the job before it looks. True if a sweep asks it to look at all due runs."""
    answers: list[bool] = []
    if conf.REDIS:
        _best_effort(queue, "clear the bell", lambda: answers.append(enqueue.clear(queue)))
    return any(answers)


def _best_effort(queue: str, what: str, command: Callable[[], object]) -> None:
    if silence.is_silent():
        return
    began = time.monotonic()
    refused = f"{queue} {what}"  # apart from what is said of the queue: Redis may do all but this
    try:
        command()
    except (RedisError, OSError) as error:
        waited = time.monotonic() - began  # for Sentinels, or a name server: no timeout tells of those
        if isinstance(error, RedisTimeoutError | TimeoutError) or waited >= redis_clients.CONNECT_TIMEOUT:
            _quiet_until[queue] = time.monotonic() + QUIET
        if _log_this(refused if isinstance(error, ResponseError) else queue):
            until = next(text for kind, text in UNTIL if isinstance(error, kind))
            text = 'cannot %s for queue "%s", due runs wait until %s: %s: %s'
            logger.warning(text, what, queue, until, type(error).__name__, error)
    except BaseTimeoutException:
        raise  # the caller is a job of RQ's that has reached its timeout: it is told once
    except Exception:  # the caller's work is committed, and must not fail for a wrong setting
        if not _log_this(f"{queue} wrongly"):
            return
        if queue not in redis_clients.queue_names():
            logger.error(UNKNOWN_QUEUE, what, queue, ", ".join(redis_clients.queue_names()) or "none")
        else:
            logger.exception('cannot %s for queue "%s"; run `manage.py check`', what, queue)
    else:
        if _log_this.clear(queue):
            logger.warning('Redis answers again for queue "%s"', queue)
        if _log_this.clear(refused):
            logger.warning('can %s for queue "%s" again', what, queue)


def on_commit(callback: Callable[[], None], *, using: str) -> None:
    """Call `callback` if and when the open transaction commits; at once if there is none."""
    try:
        transaction.on_commit(callback, using=using)
    except transaction.TransactionManagementError:
        callback()  # autocommit is off and no transaction is Django's: the sweep finds what this ring comes too early for


def _notified_in_this_transaction(alias: str) -> set[str]:
    """The queues rung so far by the commit to come; shared by all its callbacks, renewed by the first that runs.

    Each wish has a callback of its own rather than one for all: Django drops the callbacks of a savepoint that is
    rolled back, and with it would go the wishes that came after.
    """
    connection = connections[alias]
    rung: set[str] | None = getattr(connection, "_durable_rung", None)
    if rung is None:
        rung = set()
        connection._durable_rung = rung  # type: ignore[attr-defined]  # ours, beside Django's own
    return rung


def _notify_once(queue: str, alias: str, rung: set[str]) -> None:
    connection = connections[alias]
    if getattr(connection, "_durable_rung", None) is rung:
        connection._durable_rung = None  # type: ignore[attr-defined]
    if queue not in rung:
        rung.add(queue)
        notify(queue)
