"""Redis clients and RQ queues for the bell, the timer and the workers.

Owns how durable talks to the Redis of an RQ queue: with short timeouts and without patience, because a web request
stands behind most calls and nothing that matters is kept there. Opens no connection before the first command. Must
not decide what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import copy
from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed
from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool
from rq import Queue
from rq.serializers import JSONSerializer

from durable.conf import conf
from durable.core import registry

__all__ = ["LogThrottle", "client", "one_queue_per_redis", "queue_names", "rq_queue"]

CONNECT_TIMEOUT = 0.5  # seconds
SOCKET_TIMEOUT = 1.0  # seconds
_WORTH_ANOTHER: Final = (RedisConnectionError, ReadOnlyError)

_queues: dict[str, Queue] = {}


def queue_names() -> list[str]:
    """The queues that `settings.RQ_QUEUES` has, in its order; without Redis also those that workflows go to."""
    given = list(getattr(settings, "RQ_QUEUES", None) or {})
    if conf.REDIS:
        return given
    return list(dict.fromkeys([*given, conf.QUEUE, *(each.queue for each in registry.all())]))


def rq_queue(name: str) -> Queue:
    """RQ's queue of this name, writing JSON and at once. Raises KeyError for one that RQ_QUEUES lacks."""
    if name not in _queues:
        # Imported here: django_rq reads the settings when it is imported.
        from django_rq import get_queue

        connection = _with_short_timeouts(name)
        # A commit mode of its own, because durable knows which database's commit to wait for, and never `ASYNC: False`:
        # work() inside a web request would run other people's workflows there.
        queue = get_queue(name, connection=connection, serializer=JSONSerializer, commit_mode="auto", is_async=True)
        _queues[name] = queue
    return _queues[name]


def client(name: str) -> Redis:
    """The Redis of an RQ queue. Safe to share between threads and to use after a fork. Raises KeyError."""
    return rq_queue(name).connection


def one_queue_per_redis(queues: Iterable[str]) -> dict[str, Redis]:
    """One queue for each Redis that the queues live in, with its client; none where durable uses no Redis."""
    if not conf.REDIS:
        return {}
    found: dict[str, tuple[str, Redis]] = {}
    for name in queues:
        redis = client(name)
        found.setdefault(repr(_place(redis.connection_pool)), (name, redis))
    return dict(found.values())


def _place(pool: ConnectionPool) -> object:
    """Tells one Redis from another. Behind Sentinels it has no address of its own."""
    kwargs = pool.connection_kwargs
    place = {key: kwargs.get(key) for key in ("host", "port", "path", "db")}
    if isinstance(pool, SentinelConnectionPool):
        # in any order: those that answer are put first
        sentinels = {repr(_place(each.connection_pool)) for each in pool.sentinel_manager.sentinels}
        return place, pool.service_name, sorted(sentinels)
    return place


def _with_short_timeouts(name: str) -> Redis:
    """A client of our own: the project's, django-redis' for example, keeps its timeouts."""
    from django_rq import get_connection

    theirs = get_connection(name)
    pool = _pool_with_short_timeouts(theirs.connection_pool)
    if pool is not None:
        return Redis(connection_pool=pool)
    theirs.connection_pool.connection_kwargs.update(_short_timeouts())
    return theirs


def _pool_with_short_timeouts(pool: Any) -> ConnectionPool | None:
    """A pool to the same place that lets nobody wait for a connection; None for one of an unknown class."""
    kwargs = {**pool.connection_kwargs, "connection_class": pool.connection_class, **_short_timeouts()}
    if type(pool) in (ConnectionPool, BlockingConnectionPool):
        return ConnectionPool(**kwargs)
    if type(pool) is not SentinelConnectionPool:
        return None
    # The Sentinels are asked for the master by whoever connects, who must not wait for them either.
    manager = copy(pool.sentinel_manager)
    sentinels = [_pool_with_short_timeouts(each.connection_pool) for each in manager.sentinels]
    manager.sentinels = [Redis(connection_pool=each) for each in sentinels]
    del kwargs["connection_pool"]  # theirs
    options = {"is_master": pool.is_master, "check_connection": pool.check_connection}
    return SentinelConnectionPool(pool.service_name, manager, **options, **kwargs)  # type: ignore[no-untyped-call]


def _short_timeouts() -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": SOCKET_TIMEOUT,
        # Once more after a broken connection, at once: a pooled one may be left from before Redis was restarted, or
        # lead to a master that is a replica since its name was given to another one. Not after a timeout, which has
        # taken its time already.
        "retry": Retry(NoBackoff(), 1, supported_errors=_WORTH_ANOTHER),
        "retry_on_error": list(_WORTH_ANOTHER),  # redis-py 5 closes the connection, and asks this before it tries again
    }


class LogThrottle:
    """Says yes at most once per `interval` seconds and key, so that an outage fills no log."""

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
        """Forget that it was said; True if it was, so that the recovery can be told as well."""
        return self._said.pop(key, None) is not None


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in {"RQ_QUEUES", "RQ"}:
        for queue in _queues.values():  # or garbage collection would come upon open sockets
            queue.connection.connection_pool.disconnect()
        _queues.clear()


setting_changed.connect(_on_setting_changed, dispatch_uid="durable.notifier.redis_clients")
