"""The heartbeat of the sweeps: a key in each Redis that says when a sweep last ran, and in which process.

Owns this key. Operators use it to check that a sweep runs. It must not decide anything: it may be lost, late or wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from redis.exceptions import RedisError

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
