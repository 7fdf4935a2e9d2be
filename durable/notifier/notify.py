"""Notify RQ workers that a queue has due runs, and timers that a deadline is near.

Owns the RQ jobs of durable, one per queue and not per run, and the Redis keys that coalesce them. A notification
carries no truth: the database says what is due, the sweep makes up for a lost notification, and the job of a
superfluous one finds nothing to do. Nothing here raises or blocks for long: callers have committed their work and must
not fail because of Redis.

How notifications are coalesced. A notification sets the key `durable:bell:<queue>` if it is not set (the value is the
id of its RQ job) and enqueues that job, in one step (`durable.notifier.enqueue`). If the key is set, a job is about to
query the database, and nothing more is needed. The job deletes the key *before* it queries the database. The races:

- A notification before the key is deleted: its run was committed before, and the job queries after. The run is found.
- A notification between the deletion and the query: the key is free, so a second job is enqueued. One query too many.
- Two notifications at once: one of them sets the key.
- A worker that has found no more due runs takes back the notification that it sent after a full claim, unless a worker
  has its job already: it deletes key and job in one step, and then queries once more, as the job would have.
- The job is lost (a worker was killed between taking the job and deleting the key, an operator emptied the RQ queue):
  notifications are dropped until the key expires. The sweep does not wait for that: it *forces*, that is, it checks
  whether the job is in the RQ queue, and enqueues another one if not.
- A worker that searches only the newer end of the due runs (`durable.worker.claim_bounds`) is asked by a second key to
  search all of them. The sweep sets it, whether or not it enqueues a job; the job deletes it together with the first
  key.
- Redis is flushed, or evicts the key: the next notification enqueues a job. If Redis loses the job alone, see above.
- Redis refuses (its user lacks a permission, it is full, it is a replica): the notification is dropped, and the log
  says what to do.
- The end of a pass makes a run of the same queue due: its worker claims the run itself and notifies no other worker,
  unless it has no room, is to stop, or cannot (`durable.worker.loop`). If it is killed between, the sweep notifies.
- The queue has another name by now: each of its names that RQ_QUEUES has is notified, and a job finds the runs of all
  names. So a job that was enqueued before the rename finds them too.
- There is no Redis (`DURABLE["REDIS"] = False`): listeners in this process are notified (`durable.notifier.wakeups`),
  and on PostgreSQL those in others (`durable.notifier.channel`). Elsewhere workers poll.
- Redis is down: the notification is dropped, and workers poll the database until Redis is back
  (`durable.notifier.redis_clients`). Listeners in this process are notified, as without Redis. A Redis that made a
  caller wait is left alone for some seconds: then one caller tries again. If Redis goes down just when a notification
  was sent: the same, and the next notification reports it, because the sender does not wait for the answer
  (`durable.notifier.enqueue`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
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
from durable.core.names.renames import names_of_queue
from durable.notifier import channel, enqueue, redis_clients, wakeups

logger = logging.getLogger("durable.bell")

UNKNOWN_QUEUE = (
    'cannot %s for queue "%s": RQ_QUEUES lacks it, and has %s. Its runs wait until RQ_QUEUES has it and a durable_worker '
    "serves it; if the name is a mistake, move them to another queue with `durable move`"
)
_MOST_SHOWN: Final = 20  # queues in that message
#: Until when due runs wait after such an error; the first class that fits counts.
UNTIL: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AuthenticationError, "RQ_QUEUES has a user and a password that Redis knows"),
    (NoPermissionError, "Redis allows its user what docs/guides/operating.md lists"),
    (OutOfMemoryError, "Redis has more memory (its maxmemory)"),
    (ReadOnlyError, "RQ_QUEUES leads to the master, which this Redis is not"),
    (ResponseError, "Redis does not refuse it any more"),
    (Exception, "the first sweep after Redis is back"),
)
LOOK_EVERY = 5.0  # seconds between two queries for the other names of a queue
#: The pub/sub channel of the alarms; a message is JSON: `{"queue": ..., "at": ISO 8601}`.
ALARMS = "durable:alarms"

_log_this = redis_clients.LogThrottle()
_quiet_until: dict[str, float] = {}


def notify(queue: str, *, force: bool = False) -> None:
    """Notify a worker that `queue` has due runs now.

    With `force` (the sweep), notify even if a notification is pending, whose job may be lost, and even if Redis has
    just made a caller wait. A queue that a migration has renamed is notified under each name that RQ_QUEUES has.
    """
    if not conf.REDIS:
        for name in names_of_queue(queue):
            wakeups.notify(name)
            channel.tell_due(name)
        return
    for name in _reachable_names(queue):
        command = partial(enqueue.notify, name, force=force)
        if not (_may_try(name, force=force) and _best_effort(name, "notify a worker", command)):
            wakeups.notify(name)


def notify_of_found(queue: str, *, force: bool = False) -> None:
    """Do as `notify` for runs that a timer or a sweep has found.

    Without Redis, notify the workers of this process alone: other processes have timers of their own.
    """
    if conf.REDIS:
        notify(queue, force=force)
        return
    for name in names_of_queue(queue):
        wakeups.notify(name)


def notify_on_commit(queues: Iterable[str], using: str | None = None) -> None:
    """Notify each queue when the transaction on `using` (durable's database) commits; now if there is none.

    Each transaction notifies a queue once, however often it asks. A savepoint that is rolled back drops its own
    notifications only.
    """
    alias = using or conf.DATABASE
    notified = _notified_in_this_transaction(alias)
    for queue in queues:
        on_commit(lambda queue=queue: _notify_once(queue, alias, notified), using=alias)  # type: ignore[misc]


def notify_at(queue: str, moment: datetime) -> None:
    """Notify the timers that a run of `queue` is due at `moment` (aware).

    Timers query the database for deadlines at every sweep. Only a deadline before the next sweep needs an alarm; for
    later ones nothing is sent. For a moment in the past, `queue` is notified at once.
    """
    remaining = moment - clock.now()
    is_near = remaining <= timedelta(seconds=conf.SWEEP_INTERVAL + 1)
    if not conf.REDIS:
        for name in names_of_queue(queue):
            wakeups.notify_at(name, moment)
            if is_near:
                channel.tell_deadline(name)
        return
    if remaining <= timedelta(0):
        notify(queue)
        return
    if not is_near:
        return
    message = json.dumps({"queue": queue, "at": moment.isoformat()})
    for name in _reachable_names(queue):
        if not (_may_try(name) and _best_effort(name, "set an alarm", partial(_publish, name, message))):
            wakeups.notify_at(name, moment)


def _publish(queue: str, message: str) -> None:
    redis_clients.client(queue).publish(ALARMS, message)


def notify_at_on_commit(queue: str, moment: datetime, using: str | None = None) -> None:
    """Call `notify_at` when the transaction on `using` (durable's database) commits."""
    on_commit(lambda: notify_at(queue, moment), using=using or conf.DATABASE)


def acknowledge(queue: str) -> bool:
    """Delete the pending-notification key, so that later notifications enqueue a new job.

    The job calls this before it queries the database. Returns True if a sweep asks the job to search all due runs.
    """
    answers: list[bool] = []
    if conf.REDIS and _may_try(queue):
        _best_effort(queue, "delete the pending notification", lambda: answers.append(enqueue.clear(queue)))
    return any(answers)


def take_back(queue: str) -> bool:
    """Delete the pending notification of `queue`, unless a worker has taken it, before the caller queries for due runs.

    Return True if there was one: a run may have become due that no other notification tells of. The notification of a
    renamed queue is left alone, because it tells of the runs of all names.
    """
    taken: list[bool] = []
    if conf.REDIS and names_of_queue(queue) == (queue,) and _may_try(queue):
        _best_effort(queue, "take a notification back", lambda: taken.append(enqueue.take_back(queue)))
    return any(taken)


def _reachable_names(queue: str) -> tuple[str, ...]:
    """Return the names of the queue that RQ_QUEUES has; the given name if it has none.

    A process that does not know the name checks now and then whether a migration has given it to one of its queues.
    """
    known = redis_clients.queue_names()
    names = [each for each in names_of_queue(queue) if each in known]
    if not names and _learn_queues is not None and _may_look(queue):
        try:
            _learn_queues()
        except Exception:  # the caller's work is committed, and the name that RQ_QUEUES lacks is logged next
            logger.debug('cannot read whether a migration has renamed the queue "%s"', queue, exc_info=True)
        names = [each for each in names_of_queue(queue) if each in known]
    return tuple(names) or (queue,)


_learn_queues: Callable[[], None] | None = None
_may_look = redis_clients.LogThrottle(LOOK_EVERY)


def learn_with(learn: Callable[[], None]) -> None:
    """Register `learn`, which reads renamed queues. It is called if RQ_QUEUES lacks a queue."""
    global _learn_queues
    _learn_queues = learn


def _may_try(queue: str, *, force: bool = False) -> bool:
    """Return False if the Redis of the queue has just made a caller wait. Once that is over, one caller tries."""
    until = _quiet_until.get(queue)
    if until is None or force or not redis_clients.is_any_away():
        return True
    if time.monotonic() < until:
        return False
    _be_quiet(queue)
    return True


def _be_quiet(queue: str) -> None:
    for name in redis_clients.queues_beside(queue):
        _quiet_until[name] = time.monotonic() + redis_clients.QUIET


def _best_effort(queue: str, what: str, command: Callable[[], object]) -> bool:
    """Return True if Redis has done the work, or must not be tried now."""
    if wakeups.is_silent():
        return True
    began = time.monotonic()
    # logged apart from other errors of the queue: Redis may allow everything but this command
    refused = f"{queue} {what}"
    try:
        command()
    except (RedisError, OSError) as error:
        waited = time.monotonic() - began  # for Sentinels or a name server, which no timeout limits
        if isinstance(error, RedisTimeoutError | TimeoutError) or waited >= redis_clients.CONNECT_TIMEOUT:
            _be_quiet(queue)
        if redis_clients.is_away(error):
            redis_clients.began(queue, error)
        elif _log_this(refused if isinstance(error, ResponseError) else queue):
            until = next(text for kind, text in UNTIL if isinstance(error, kind))
            text = 'cannot %s for queue "%s", due runs wait until %s: %s: %s'
            logger.warning(text, what, queue, until, type(error).__name__, error)
    except BaseTimeoutException:
        raise  # the caller is an RQ job that has reached its timeout; RQ raises this once
    except Exception:  # the caller's work is committed, and must not fail because of a wrong setting
        if not _log_this(f"{queue} wrongly"):
            return False
        if queue not in redis_clients.queue_names():
            logger.error(UNKNOWN_QUEUE, what, queue, _shown(list(redis_clients.queue_names())) or "none")
        else:
            logger.exception('cannot %s for queue "%s"; run `manage.py check`', what, queue)
    else:
        redis_clients.ended(queue)
        if _quiet_until:
            for name in redis_clients.queues_beside(queue):
                _quiet_until.pop(name, None)
        if _log_this.clear(queue):
            logger.warning('Redis answers again for queue "%s"', queue)
        if _log_this.clear(refused):
            logger.warning('can %s for queue "%s" again', what, queue)
        return True
    return False


def on_commit(callback: Callable[[], None], *, using: str) -> None:
    """Call `callback` if and when the open transaction commits; at once if there is none."""
    try:
        transaction.on_commit(callback, using=using)
    except transaction.TransactionManagementError:
        # autocommit is off without a transaction of Django's: if this notification is too early, the sweep finds the
        # run
        callback()


def _notified_in_this_transaction(alias: str) -> set[str]:
    """Return the queues notified so far at the coming commit: a set that all its callbacks share.

    The first callback that runs resets the set for the next transaction. Each notification has a callback of its own:
    Django drops the callbacks of a savepoint that is rolled back, and one callback for all would drop later
    notifications too.
    """
    connection = connections[alias]
    notified: set[str] | None = getattr(connection, "_durable_notified", None)
    if notified is None:
        notified = set()
        connection._durable_notified = notified  # type: ignore[attr-defined]  # ours, beside Django's own
    return notified


def _notify_once(queue: str, alias: str, notified: set[str]) -> None:
    connection = connections[alias]
    if getattr(connection, "_durable_notified", None) is notified:
        connection._durable_notified = None  # type: ignore[attr-defined]
    if queue not in notified:
        notified.add(queue)
        notify(queue)


def _shown(names: Sequence[str]) -> str:
    further = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + further
