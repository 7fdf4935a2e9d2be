"""The workers that RQ has registered in a Redis, and the heartbeat of the sweeps.

Owns how RQ's records of workers are read, and a key in each Redis that says when a sweep last ran, and in which
process. Operators use it to check that a sweep runs. Nothing may be decided by either: records may be missing, old or
wrong.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Worker
from rq.worker_registration import REDIS_WORKER_KEYS

from durable.conf import conf
from durable.notifier import redis_clients

KEY = "durable:sweep"
KEPT = 86_400  # seconds for which the last sweep is remembered


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


logger = logging.getLogger("durable.inspection")


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
    """Return at most `most` workers, in the order of their names, with a Redis command for each. Raises RedisError.

    A record that cannot be read is left out, and the log names it.
    """
    names: Any = redis.smembers(REDIS_WORKER_KEYS)
    keys = sorted(each if isinstance(each, str) else each.decode(errors="replace") for each in names)
    found = []
    for key in keys[:most]:
        try:
            worker = Worker.find_by_key(key, connection=redis)
            if worker is not None:
                found.append(_read_workers(worker))
        except (RedisError, OSError):
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # other programs write to Redis too
            logger.warning("the record %r of an RQ worker cannot be read: %s", key, error)
    return found


def _read_workers(worker: Any) -> RegisteredWorker:
    return RegisteredWorker(
        name=worker.name,
        host=worker.hostname or "",
        pid=worker.pid or 0,
        queues=tuple(worker.queue_names()),
        state=str(getattr(worker.get_state(), "value", worker.get_state())),
        last_heartbeat=_aware(worker.last_heartbeat),
        started_at=_aware(worker.birth_date),
    )


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
