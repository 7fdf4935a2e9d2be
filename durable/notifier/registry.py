"""The workers that RQ has registered in a Redis, and the heartbeat of the sweeps.

Owns how RQ's records of workers are read, and a key in each Redis that says when a sweep last ran, and in which
process. Operators use it to check that a sweep runs. Nothing may be decided by either: records may be missing, old or
wrong.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Worker
from rq.utils import utcparse
from rq.worker_registration import REDIS_WORKER_KEYS

from durable.conf import conf
from durable.notifier import redis_clients

KEY = "durable:sweep"
KEPT = 86_400  # seconds for which the last sweep is remembered

logger = logging.getLogger("durable.inspection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSweep:
    """When a sweep last ran, its interval in seconds, and the name of its process."""

    at: datetime
    interval: float
    by: str

    def is_overdue(self, now: datetime) -> bool:
        """Return True if the next sweep should have run long ago."""
        return (now - self.at).total_seconds() > 3 * self.interval + 10


def record(now: datetime, name: str) -> None:
    """Record that a sweep ran at `now`. Raises nothing if Redis is unreachable."""
    text = json.dumps({"at": now.isoformat(), "interval": conf.SWEEP_INTERVAL, "by": name})
    try:
        for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
            redis.set(KEY, text, ex=KEPT)
    except (RedisError, OSError):
        return  # the notifier has logged it already


def last_sweep() -> LastSweep | None:
    """Return the newest record of a sweep in any Redis, or None. Raises RedisError or OSError if one is unreachable."""
    found = []
    for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
        text = redis.get(KEY)
        if text is not None:
            found.append(_read(text))
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.at) if known else None


def _read(text: object) -> LastSweep | None:
    try:
        data = json.loads(text)  # type: ignore[arg-type]  # bytes, unless another program wrote the key
        at = datetime.fromisoformat(data["at"])
        return LastSweep(at=at, interval=float(data["interval"]), by=str(data["by"])) if at.tzinfo else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWorker:
    """RQ's record of one worker. `state` is RQ's ("busy", "idle", ...). Both times are aware, or None if unknown."""

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    state: str
    last_heartbeat: datetime | None
    started_at: datetime | None


def registered_workers(redis: Redis, most: int) -> list[RegisteredWorker]:
    """Return at most `most` workers, in the order of their names, with two commands. Raises RedisError.

    A record that cannot be read is left out, and the log names it.
    """
    names: Any = redis.smembers(REDIS_WORKER_KEYS)
    keys = sorted(map(_text, names))[:most]
    with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hgetall(key)
        records = pipeline.execute()
    found = []
    for key, record in zip(keys, records, strict=True):
        try:
            if record:
                found.append(_registered(key, {_text(name): _text(value) for name, value in record.items()}))
        except ValueError as error:  # other programs write to Redis too
            logger.warning("the record %r of an RQ worker cannot be read: %s", key, error)
    return found


def _registered(key: str, record: Mapping[str, str]) -> RegisteredWorker:
    name = key.removeprefix(Worker.redis_worker_namespace_prefix)
    if name == key:
        raise ValueError("its key has another prefix")
    return RegisteredWorker(
        name=name,
        host=record.get("hostname", ""),
        pid=int(record.get("pid") or 0),
        queues=tuple(filter(None, record.get("queues", "").split(","))),
        state=record.get("state", "?"),
        last_heartbeat=_moment(record.get("last_heartbeat")),
        started_at=_moment(record.get("birth")),
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _moment(text: str | None) -> datetime | None:
    return utcparse(text).replace(tzinfo=UTC) if text else None
