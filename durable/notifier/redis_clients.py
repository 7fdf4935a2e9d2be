"""Redis clients and RQ queues for the notifier, the timer and the workers.

Owns how durable talks to the Redis of an RQ queue: with short timeouts and few retries, because most calls happen in a
web request and nothing that matters is kept in Redis. Opens no connection before the first command, and imports redis
and rq where they are used first, because every process of a project imports this module. Must not decide what is sent.

Also owns the record that a Redis is away (unreachable from this process), and one line in the log when that begins and
one when it ends. Meanwhile workers of `durable_worker` poll the database (`durable.worker.timer`, `durable.worker.rq`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.signals import setting_changed

from durable.conf import conf
from durable.core import registry

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis
    from rq import Queue

CONNECT_TIMEOUT = 0.5  # seconds
SOCKET_TIMEOUT = 1.0  # seconds

#: Settings of a queue in RQ_QUEUES that say nothing about its connection.
_NOT_OF_CONNECTION: Final = frozenset(
    {"ASYNC", "AUTOCOMMIT", "COMMIT_MODE", "DEFAULT_RESULT_TTL", "DEFAULT_TIMEOUT", "SERIALIZER"}
)

_queues: dict[str, Queue] = {}
_clients: list[tuple[dict[str, Any], Redis]] = []  # each with the settings of its connection

logger = logging.getLogger("durable.bell")

# Seconds without a further try after Redis made a caller wait.
QUIET: Final = 5.0
# Seconds for which workers poll after Redis is back: other processes may not have tried again yet.
AFTERWARDS: Final = QUIET + 1.0

_lock = threading.Lock()
_since: dict[str, float] = {}  # by a queue of that Redis, monotonic
_poll_until = 0.0


def queue_names() -> list[str]:
    """Return the queue names of `settings.RQ_QUEUES` in order; without Redis also the queues of the workflows."""
    given = list(getattr(settings, "RQ_QUEUES", None) or {})
    if conf.REDIS:
        return given
    return list(dict.fromkeys([*given, conf.QUEUE, *(each.queue for each in registry.all())]))


def rq_queue(name: str) -> Queue:
    """Return RQ's queue of this name, which enqueues JSON at once. Raises KeyError for a queue that RQ_QUEUES lacks."""
    if name not in _queues:
        # Imported here: django_rq reads the settings when it is imported.
        from django_rq import get_queue
        from rq.serializers import JSONSerializer

        connection = _shared_client(name)
        # The queue has its own commit mode, because durable knows which database's commit to wait for. `ASYNC: False`
        # is never obeyed: work() inside a web request would run other users' workflows there.
        queue = get_queue(name, connection=connection, serializer=JSONSerializer, commit_mode="auto", is_async=True)
        _queues[name] = queue
    return _queues[name]


def client(name: str) -> Redis:
    """Return the Redis client of an RQ queue. Threads may share it, and it works after a fork. Raises KeyError."""
    return rq_queue(name).connection


def _shared_client(name: str) -> Redis:
    """Return the client of all queues whose connections are configured alike.

    With a client for each queue, a process would keep two connections for each of hundreds of queues.
    """
    given = (getattr(settings, "RQ_QUEUES", None) or {}).get(name)
    if given is None:
        return _with_short_timeouts(name)  # raises KeyError, unless RQ's own settings have the queue
    connection = {key: value for key, value in given.items() if key not in _NOT_OF_CONNECTION}
    for known, redis in _clients:
        if known == connection:
            return redis
    redis = _with_short_timeouts(name)
    _clients.append((connection, redis))
    return redis


def one_queue_per_redis(queues: Iterable[str]) -> dict[str, Redis]:
    """Return one queue for each Redis that the queues are in, with its client; empty where durable uses no Redis."""
    if not conf.REDIS:
        return {}
    found: dict[str, tuple[str, Redis]] = {}
    for name in queues:
        redis = client(name)
        found.setdefault(repr(_place(redis.connection_pool)), (name, redis))
    return dict(found.values())


def queues_beside(name: str) -> list[str]:
    """Return the queues of RQ_QUEUES that are in the same Redis as this one; it alone if that is not known."""
    try:
        place = repr(_place(client(name).connection_pool))
        return [each for each in queue_names() if repr(_place(client(each).connection_pool)) == place] or [name]
    except Exception:  # noqa: BLE001 - a queue with wrong settings, which a check reports
        return [name]


def first_queue_beside(name: str) -> str:
    """Return the first queue of RQ_QUEUES in the same Redis as this one; it serves as a name for that Redis."""
    return queues_beside(name)[0]


def _place(pool: ConnectionPool) -> object:
    """Return a value that identifies a Redis. One behind Sentinels has no address of its own."""
    from redis.sentinel import SentinelConnectionPool

    kwargs = pool.connection_kwargs
    place = {key: kwargs.get(key) for key in ("host", "port", "path", "db")}
    if isinstance(pool, SentinelConnectionPool):
        # sorted, because redis-py moves the Sentinels that answer to the front
        sentinels = {repr(_place(each.connection_pool)) for each in pool.sentinel_manager.sentinels}
        return place, pool.service_name, sorted(sentinels)
    return place


def _with_short_timeouts(name: str) -> Redis:
    """Return a separate client for durable; the project's client (of django-redis, for example) keeps its timeouts."""
    from django_rq import get_connection
    from redis import Redis

    project_client = get_connection(name)
    pool = _pool_with_short_timeouts(project_client.connection_pool)
    if pool is not None:
        return Redis(connection_pool=pool)
    project_client.connection_pool.connection_kwargs.update(_short_timeouts())
    return project_client


def _pool_with_short_timeouts(pool: Any) -> ConnectionPool | None:
    """Return a pool to the same Redis in which no thread waits for a connection; None if the class is unknown."""
    from redis import BlockingConnectionPool, ConnectionPool, Redis
    from redis.sentinel import SentinelConnectionPool

    kwargs = {**pool.connection_kwargs, "connection_class": pool.connection_class, **_short_timeouts()}
    if type(pool) in (ConnectionPool, BlockingConnectionPool):
        return ConnectionPool(**kwargs)
    if type(pool) is not SentinelConnectionPool:
        return None
    # A connecting thread asks the Sentinels for the master, and must not wait long for them either.
    manager = copy(pool.sentinel_manager)
    sentinels = [_pool_with_short_timeouts(each.connection_pool) for each in manager.sentinels]
    manager.sentinels = [Redis(connection_pool=each) for each in sentinels]
    del kwargs["connection_pool"]  # the client's own
    options = {"is_master": pool.is_master, "check_connection": pool.check_connection}
    return SentinelConnectionPool(pool.service_name, manager, **options, **kwargs)  # type: ignore[no-untyped-call]


def _short_timeouts() -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ReadOnlyError
    from redis.retry import Retry

    worth_another = (RedisConnectionError, ReadOnlyError)
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": SOCKET_TIMEOUT,
        # Retry once at once after a broken connection: a pooled one may be left from before Redis was restarted, or
        # lead to a master that has become a replica. Do not retry after a timeout, which has taken its time already.
        "retry": Retry(NoBackoff(), 1, supported_errors=worth_another),
        "retry_on_error": list(worth_another),  # redis-py 5 closes the connection, and checks this before it retries
    }


class LogThrottle:
    """Allows a log message at most once per `interval` seconds and key, so that an outage does not flood the log."""

    def __init__(self, interval: float = 30.0) -> None:
        self.interval = interval
        self._said: dict[str, float] = {}

    def __call__(self, key: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(key, -self.interval) < self.interval:
            return False
        self._said[key] = now
        return True

    def clear(self, key: str) -> bool:
        """Forget the last message of `key`. Return True if there was one, so that the caller can log the recovery."""
        return self._said.pop(key, None) is not None


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in {"RQ_QUEUES", "RQ"}:
        for queue in _queues.values():  # otherwise garbage collection would find open sockets
            queue.connection.connection_pool.disconnect()
        _queues.clear()
        _clients.clear()


setting_changed.connect(_on_setting_changed, dispatch_uid="durable.notifier.redis_clients")


def is_away(error: BaseException) -> bool:
    """Return True if the error means that Redis is away. Other errors mean that it refuses something."""
    from redis.exceptions import AuthenticationError
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    is_of_connection = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
    return is_of_connection and not isinstance(error, AuthenticationError)


def began(queue: str, error: BaseException) -> None:
    """Record that the Redis of the queue does not answer, and log it if that is new."""
    place = first_queue_beside(queue)
    with _lock:
        if place in _since:
            return
        _since[place] = time.monotonic()
    text = 'Redis is away (queue "%s"), durable_worker polls the database until it is back: %s: %s'
    logger.warning(text, place, type(error).__name__, error)


def ended(queue: str) -> None:
    """Record that the Redis of the queue answers, and log it if that is new."""
    global _poll_until
    if not _since:  # as it almost always is
        return
    place = first_queue_beside(queue)
    with _lock:
        since = _since.pop(place, None)
        if since is not None:
            _poll_until = time.monotonic() + AFTERWARDS
    if since is not None:
        logger.warning('Redis answers again after %.0f s (queue "%s")', time.monotonic() - since, place)


def is_found_away(queue: str) -> bool:
    """Ping the Redis of the queue; return True if it does not answer."""
    try:
        client(queue).ping()
    except Exception as error:  # noqa: BLE001 - a queue with wrong settings, which a check reports
        return is_away(error)
    return False


def is_any_away() -> bool:
    """Return True if some Redis does not answer."""
    return bool(_since)


def must_poll() -> bool:
    """Return True if notifications of other processes may be lost: a Redis is away, or was a moment ago."""
    return bool(_since) or time.monotonic() < _poll_until
